"""Laws: what holds for every method there is. A method that is registered is under them without being named here."""
