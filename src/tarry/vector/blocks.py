"""Blocks of vectors that fit a processor's cache, for several operations in a row on the same vectors.

    blocks(a, b, out)     the same block of each vector, one after the other

Operations one after the other on whole vectors read and write main memory each time. Block by block, what the first
operation leaves in the cache is there for the next one: a sweep costs what it reads first and writes last.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["block_slices", "blocks", "blocks_reversed", "cut", "large"]

_BLOCK = 1 << 19  # numbers: shorter blocks cost more calls than they save memory traffic


def large(vec: Tensor) -> bool:
    """Return whether blocks are faster for this vector: it is large, and on a processor, which has a cache."""
    return vec.device.type == "cpu" and len(vec) > _BLOCK


def cut(vec: Tensor) -> tuple[Tensor, ...]:
    """Return the vector's blocks; a vector that is not large is one block."""
    return torch.split(vec, _BLOCK) if large(vec) else (vec,)


def block_slices(vec: Tensor, at: slice) -> list[slice]:
    """Return the slices of the blocks of a part of a vector."""
    size = _BLOCK if large(vec) else max(at.stop - at.start, 1)
    return [slice(i, min(i + size, at.stop)) for i in range(at.start, at.stop, size)]


def blocks(*vectors: Tensor) -> list[tuple[Tensor, ...]]:
    """Return the same block of every vector, from first to last."""
    return list(zip(*map(cut, vectors), strict=True))


def blocks_reversed(*vectors: Tensor) -> list[tuple[Tensor, ...]]:
    """Return the blocks from last to first, for a second sweep: the last blocks are still in the cache."""
    return blocks(*vectors)[::-1]
