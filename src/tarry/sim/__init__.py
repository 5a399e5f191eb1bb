"""The simulator: a virtual clock around the server."""
