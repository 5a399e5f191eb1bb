"""A pool of buffers for large vectors: `empty_pooled(like)` is torch.empty_like without the page faults.

A large vector fetched from the system costs many times what filling it does, because every page is a fault. So
`empty_pooled` reuses the memory of a vector that no tensor, view or array refers to any more. What
the pool takes back is what the interpreter would have freed, and never before.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["clear_pool", "empty_pooled"]

_LARGE = 1 << 20  # bytes: the C library pools smaller buffers by itself
_MOST = 8  # free buffers of a size: a server step with much state makes that many before it drops the old ones
_ALIGNMENT = 64  # bytes
_MOST_BYTES = 1 << 28  # of the free buffers of a size: for larger vectors memory counts more than page faults

# One for the process: modules of parts and methods, which hold no server, use it, and it changes no result
_free_buffers: dict[int, list[Tensor]] = {}  # by size, at most _MOST of each


def empty_pooled(like: Tensor) -> Tensor:
    """Return a vector of the same shape, type and device, not filled: for the `out` of an operation."""
    if like.nbytes < _LARGE or like.device.type != "cpu":
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    try:
        memory = _free_buffers[like.nbytes].pop()
    except LookupError:
        memory = _aligned(like.nbytes)
    numbers: Any = memory.numpy()
    lease = memoryview(numbers)  # referred to by the tensor and by all that shares its memory
    weakref.finalize(lease, _release, memory).atexit = False
    return torch.frombuffer(lease, dtype=like.dtype).view(like.shape)


def _aligned(nbytes: int) -> Tensor:
    """Return a buffer that begins where torch's own vectors do."""
    room = np.empty(nbytes + _ALIGNMENT, dtype=np.uint8)  # numpy asks for large pages, torch does not
    start = -room.ctypes.data % _ALIGNMENT
    return torch.from_numpy(room[start : start + nbytes])


def _release(memory: Tensor) -> None:
    """Finalizer: return the buffer to the pool. It may run in any thread."""
    free = _free_buffers.setdefault(memory.nbytes, [])
    if len(free) < _MOST and (len(free) + 1) * memory.nbytes <= _MOST_BYTES:
        free.append(memory)


def clear_pool() -> None:
    """Free the buffers in the pool."""
    _free_buffers.clear()
