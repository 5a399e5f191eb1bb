"""Convolutions of stacked clients by our own kernels: Triton on a GPU, numba on a processor."""
