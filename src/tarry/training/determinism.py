"""Context managers that make torch results bit-reproducible on one kind of device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["deterministic", "nondeterministic"]


@contextmanager
def deterministic(*, exact: bool = True) -> Iterator[None]:
    """Use one CPU thread (the order of a sum changes rounding) and deterministic cuDNN kernels.

    Products on a GPU are in float32; with `exact=False` in TF32. The settings before are restored after.
    """
    threads, products, maps = torch.get_num_threads(), torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, maps.allow_tf32, maps.deterministic
    torch.set_num_threads(1)
    products.allow_tf32 = maps.allow_tf32 = not exact
    maps.deterministic = True
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        products.allow_tf32, maps.allow_tf32, maps.deterministic = before


@contextmanager
def nondeterministic() -> Iterator[None]:
    """Allow nondeterministic cuDNN kernels, whose order of addition varies."""
    maps = torch.backends.cudnn
    before = maps.deterministic
    maps.deterministic = False
    try:
        yield
    finally:
        maps.deterministic = before
