"""Threads that live as long as their process.

A thread that ends takes leave of the algebra library under a lock, a moment after Python has counted it as ended. A
worker forked in that moment would wait for that lock for ever.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

__all__ = ["threads"]


def threads(name: str, n: int) -> ThreadPoolExecutor:
    """So many of them, the same ones whenever this process asks."""
    return _of(name, n, os.getpid())


@cache
def _of(name: str, n: int, process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a forked one has none of its parent's
    return ThreadPoolExecutor(n, thread_name_prefix=name)
