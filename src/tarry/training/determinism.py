"""Arithmetic that comes to the same bits every time it is done on the same kind of device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["deterministic", "nondeterministic"]


@contextmanager
def deterministic(*, exact: bool = True) -> Iterator[None]:
    """One thread, for sums depend on how they are split; on a GPU convolutions by kernels that repeat themselves.

    Products are in float32 there, unless less will do (`exact`). What was before comes back after.
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
    """Within it any kernel may be taken, also one that adds in the order in which things come."""
    maps = torch.backends.cudnn
    before = maps.deterministic
    maps.deterministic = False
    try:
        yield
    finally:
        maps.deterministic = before
