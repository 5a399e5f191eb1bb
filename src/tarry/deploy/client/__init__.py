"""The client side of a federation: training a ticket, and what a client keeps on its own disk."""
