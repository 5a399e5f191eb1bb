"""Arithmetic on model vectors at the speed of memory.

    fresh(like)          a new vector, not filled: for the `out` of an operation
    swept(a, b, out)     the same stretch of each, one after the other, small enough for a processor's cache

A large vector fetched from the system costs many times what filling it does: every page is a fault. So `fresh` takes
the memory of one that is gone. Gone means that nothing holds it any more, neither a tensor, nor a view of it, nor an
array that shares its memory: what comes back is what the interpreter itself would have freed, and never before.

Operations one after the other on whole vectors read and write main memory each time. On stretches, what the first has
left in the cache is there for the next: a sweep costs what it reads first and what it writes last.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["blocks_reversed", "cut", "clear_pool", "empty_pooled", "large", "block_slices", "blocks"]

_LARGE = 1 << 20  # bytes; smaller ones the C library keeps
_SPARE = 8  # so many of a size are kept: a step that remembers much makes that many before it drops the old ones
_STRETCH = 1 << 19  # numbers: shorter ones cost more calls than they save memory

_spare: dict[int, list[Tensor]] = {}  # memory that nobody uses, by its size


def empty_pooled(like: Tensor) -> Tensor:
    """A vector of the same shape, type and place, not filled."""
    if like.nbytes < _LARGE or like.device.type != "cpu":
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    try:
        memory = _spare[like.nbytes].pop()
    except LookupError:
        memory = torch.from_numpy(np.empty(like.nbytes, dtype=np.uint8))  # numpy asks for large pages, torch does not
    numbers: Any = memory.numpy()
    lease = memoryview(numbers)  # the tensor holds on to it, and so does whatever shares the tensor's memory
    weakref.finalize(lease, _back, memory).atexit = False
    return torch.frombuffer(lease, dtype=like.dtype).view(like.shape)


def _back(memory: Tensor) -> None:
    """The last holder is gone. It may be in any thread, at any time."""
    spare = _spare.setdefault(memory.nbytes, [])
    if len(spare) < _SPARE:
        spare.append(memory)


def clear_pool() -> None:
    """Let go of the memory that is kept for the next vectors."""
    _spare.clear()


def large(vec: Tensor) -> bool:
    """Whether it pays to go through it in stretches; an accelerator has no such cache."""
    return vec.device.type == "cpu" and len(vec) > _STRETCH


def cut(vec: Tensor) -> tuple[Tensor, ...]:
    """The vector's stretches, or all of it at once."""
    return torch.split(vec, _STRETCH) if large(vec) else (vec,)


def block_slices(vec: Tensor, at: slice) -> list[slice]:
    """A part of a vector in stretches."""
    size = _STRETCH if large(vec) else max(at.stop - at.start, 1)
    return [slice(i, min(i + size, at.stop)) for i in range(at.start, at.stop, size)]


def blocks(*vectors: Tensor) -> list[tuple[Tensor, ...]]:
    """The same stretch of every vector, from first to last."""
    return list(zip(*map(cut, vectors), strict=True))


def blocks_reversed(*vectors: Tensor) -> list[tuple[Tensor, ...]]:
    """The same from last to first: what a sweep forth has just left in the cache comes first."""
    return blocks(*vectors)[::-1]
