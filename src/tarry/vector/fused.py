"""Fused kernels: arithmetic on large model vectors in as few passes over memory as possible, by numba (tarry[fast]).

    kernels_for(a, b, …)               → vector.kernels, or None: no numba, small vectors, an accelerator
    partition((0, n)).run(kernel, …)     on several threads
    partition(layer, layer, …).sums(…)   the same, and the sums of each stretch

Where kernels_for returns None, the caller uses torch. TARRY_NUMBA=0 makes it None everywhere: with and without numba
the last digits differ.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .blocks import blocks, large
from .threads import shared_pool

__all__ = ["Pieces", "as_scalar", "combine", "kernels_for", "numba", "partition"]

_PIECE = 1 << 16  # numbers: a sum of so many in single precision is exact enough
_TYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
Numbers = np.ndarray[Any, Any]
_MOST_THREADS = 8  # more do not help: memory is the bottleneck
THREADS = min(torch.get_num_threads(), _MOST_THREADS)  # as torch had at import: runs give torch one thread later


@cache
def numba(name: str) -> ModuleType | None:
    """Return a module of numba kernels by its full name, or None where numba is missing or TARRY_NUMBA=0."""
    if os.environ.get("TARRY_NUMBA") == "0":
        return None
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError):  # RuntimeError: numba has no folder for its cache
        return None


def kernels_for(vec: Tensor, *others: Tensor) -> ModuleType | None:
    """Return the kernels, or None where torch is as good for such vectors."""
    if not large(vec) or vec.dtype not in _TYPES or any(o.dtype != vec.dtype or o.is_cuda for o in others):
        return None
    return numba("tarry.vector.kernels")


def as_scalar(value: float, like: Tensor) -> Any:
    """Return the number in the vector's precision, for which a kernel is compiled."""
    return _TYPES[like.dtype](value)


class Pieces:
    """Stretches of a vector, cut into pieces that threads share. Sums do not depend on the number of threads."""

    def __init__(self, *stretches: tuple[int, int]):
        cut = [(n, i, min(i + _PIECE, b)) for n, (a, b) in enumerate(stretches) for i in range(a, b, _PIECE)]
        self._owner, self._starts, self._stops = np.array(cut, dtype=np.int64).reshape(-1, 3).T.copy()
        self._n = len(stretches)

    def each(self, values: Numbers, like: Tensor) -> Numbers:
        """Return for every piece the value of its stretch."""
        return values[self._owner].astype(_TYPES[like.dtype])

    def sums(self, kernel: Callable[..., None], n: int, *args: Any, threads: int | None = None) -> list[Numbers]:
        """Run a kernel that ends with n sums by piece; return those of the stretches, added in double precision."""
        sums = [np.empty(len(self._owner), dtype=_TYPES[args[0].dtype]) for _ in range(n)]
        self.run(kernel, *args, *sums, threads=threads)
        return [np.bincount(self._owner, s, minlength=self._n) for s in sums]

    def run(self, kernel: Callable[..., None], *args: Any, threads: int | None = None) -> None:
        """Run a kernel over all pieces on several threads (None: THREADS)."""
        given = [a.detach().numpy() if isinstance(a, Tensor) else a for a in args]
        first, *others = self._cuts(min(threads or THREADS, len(self._owner)))
        helpers = shared_pool("sweep", max(len(others), 1))
        at_work = [helpers.submit(kernel, *cut, self._starts, self._stops, *given) for cut in others]
        kernel(*first, self._starts, self._stops, *given)
        for thread in at_work:
            thread.result()

    def _cuts(self, n: int) -> list[tuple[int, int]]:
        """Return n runs of pieces, each of about as many numbers."""
        whole = self._upto[-1]
        inner = (int(np.searchsorted(self._upto, k * whole / n)) for k in range(1, n))
        return list(pairwise([0, *inner, len(self._owner)]))

    @cached_property
    def _upto(self) -> Numbers:
        return np.cumsum(self._stops - self._starts)


def combine(
    d: Tensor,
    a: Tensor,
    by_a: float,
    b: Tensor | None = None,
    by_b: float = 0.0,
    *,
    out: Tensor,
    left: Tensor | None = None,
) -> Tensor:
    """out = d + by_a a + by_b b, or d + by_a a where there is no b; and left = d − out, where one is given."""
    second, by_b = (a, 0.0) if b is None else (b, by_b)
    if (kernels := kernels_for(d, a, second)) is not None:
        given = d, a, second, as_scalar(by_a, d), as_scalar(by_b, d), out
        if left is None:
            partition((0, len(d))).run(kernels.combine, *given)
        else:
            partition((0, len(d))).run(kernels.combine_and_subtract, *given, left)
        return out
    for x, y, z, o, *rest in blocks(d, a, second, out, *([] if left is None else [left])):
        torch.add(x, y, alpha=by_a, out=o)
        if b is not None:
            o.add_(z, alpha=by_b)
        for r in rest:
            torch.sub(x, o, out=r)
    return out


@lru_cache(maxsize=64)  # a model has one or two; a process that runs many models forgets the oldest
def partition(*stretches: tuple[int, int]) -> Pieces:
    """Return the pieces of these stretches, cached."""
    return Pieces(*stretches)
