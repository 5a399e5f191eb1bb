"""One client's visit: the training loop, and the module whose tensors are views of one flat vector."""
