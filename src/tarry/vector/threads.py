"""Thread pools that live as long as their process.

A thread that ends deregisters from the algebra library under a lock, a moment after Python has counted it as ended. A
worker that is forked in that moment would wait for the lock for ever; so no pool is ever shut down.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

__all__ = ["shared_pool"]


def shared_pool(name: str, n: int) -> ThreadPoolExecutor:
    """Return the pool of this name and size, the same one at every call in a process."""
    return _pool(name, n, os.getpid())


@cache
def _pool(name: str, n: int, process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a fork has no threads
    return ThreadPoolExecutor(n, thread_name_prefix=name)
