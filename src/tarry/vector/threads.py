"""Threads that live as long as their process.

A thread that ends takes leave of the algebra library under a lock, a moment after Python has counted it as ended. A
worker forked in that moment would wait for that lock for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

__all__ = ["avoid_caller_core", "shared_pool"]


class _Crew(NamedTuple):
    pool: ThreadPoolExecutor
    members: list[int]  # as the system numbers those that have begun


def shared_pool(name: str, n: int) -> ThreadPoolExecutor:
    """So many of them, the same ones whenever this process asks."""
    return _of(name, n, os.getpid()).pool


def avoid_caller_core(name: str, n: int) -> None:
    """Let these run on other cores than the caller, where the system lets us.

    It wakes a thread beside the one that wakes it, where that one is about to do its own share: for some milliseconds,
    which is as long as that takes, the two may have one core between them and leave another idle.
    """
    here, members = _core(), _of(name, n, os.getpid()).members
    if here is None or not members:
        return
    others = os.sched_getaffinity(0) - {here}
    if others:
        for member in members:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(member, others)


@cache
def _of(name: str, n: int, process: int) -> _Crew:  # noqa: ARG001 - a forked one has none of its parent's
    members: list[int] = []

    def begun() -> None:
        members.append(threading.get_native_id())

    return _Crew(ThreadPoolExecutor(n, thread_name_prefix=name, initializer=begun), members)


def _core() -> int | None:
    """The one that the caller is on."""
    ask = _asked()
    return None if ask is None else int(ask())


@cache
def _asked() -> Callable[[], int] | None:
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None
