"""What the C library does with memory that is freed."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["tune_malloc", "trim_memory"]

_TRIM, _MMAP = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
_MEGABYTE = 1 << 20


def tune_malloc() -> None:
    """A habit of a process of our own: the command line's, a worker's, a benchmark's; never of one that imports us.

    Ask the C library to keep freed memory for the next tensor instead of handing it back and fetching it again.

    A step over a million weights makes and drops vectors of megabytes; fetching each anew from the system costs a few
    per cent of training. Where the C library is not glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_MMAP, 32 * _MEGABYTE)
        mallopt(_TRIM, 256 * _MEGABYTE)


def trim_memory() -> None:
    """Hand back what is free now: what is made to last lies above what is not, whose place would be kept for ever."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
