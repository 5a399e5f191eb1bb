"""Arithmetic on large flat vectors: pooled buffers, cache-sized blocks, fused kernels, threads."""
