"""Naive twins: each paper's algorithm written plainly in numpy, and the library held against it arrival by arrival.

The twins share no code with the library: they have their own problem with gradients by hand (problem.py) and their own
event loop (loop.py). Each of fedavg.py, fedprox.py, fedasync.py, fedbuff.py and orthofl.py reads like its paper's box.
"""
