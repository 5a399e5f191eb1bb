"""Context managers that make torch results bit-reproducible on one kind of device."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["deterministic", "generator_held", "generator_restored", "nondeterministic"]

_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def generator_held() -> Iterator[None]:
    """Keep runs in other threads from using torch's global generator, which a process has once."""
    with _lock:
        yield


@contextmanager
def generator_restored() -> Iterator[None]:
    """Put torch's global generator back as it was."""
    with generator_held():
        before = torch.get_rng_state()
    try:
        yield
    finally:
        with generator_held():
            torch.set_rng_state(before)


@contextmanager
def deterministic(*, exact: bool = True) -> Iterator[None]:
    """Use one CPU thread (the order of a sum changes rounding) and deterministic cuDNN kernels.

    Products on a GPU are in float32; with `exact=False` in TF32. The settings before are restored after.
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
    """Allow nondeterministic cuDNN kernels, whose order of addition varies."""
    maps = torch.backends.cudnn
    before = maps.deterministic
    maps.deterministic = False
    try:
        yield
    finally:
        maps.deterministic = before
