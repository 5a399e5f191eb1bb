"""Settings of glibc's malloc: whether freed memory is kept or handed back to the system."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["return_freed_memory", "trim_memory", "tune_malloc"]

_TRIM, _MMAP, _ARENAS = -1, -3, -8  # glibc's M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX
_MEGABYTE = 1 << 20


def tune_malloc() -> None:
    """Make malloc keep freed memory for the next tensor instead of handing it back to the system.

    Call this only in processes that tarry owns (command line, workers, benchmarks), never in a host process. A step
    over a million weights makes and drops vectors of megabytes; fetching each from the system costs a few per cent of
    training. Without glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_MMAP, 32 * _MEGABYTE)
        mallopt(_TRIM, 256 * _MEGABYTE)


def return_freed_memory() -> None:
    """Make malloc hand each freed buffer of a megabyte or more back to the system at once.

    Call this only in processes that tarry owns. Messages with a large model come in pieces of megabytes, from several
    threads; malloc would keep the room of the pieces, for each thread, which takes as much memory as the model or more.
    Without glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_MMAP, _MEGABYTE)
        mallopt(_TRIM, _MEGABYTE)
        mallopt(_ARENAS, 2)


def trim_memory() -> None:
    """Hand freed memory back to the system. Long-lived tensors lie above it, so malloc would keep it for good."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
