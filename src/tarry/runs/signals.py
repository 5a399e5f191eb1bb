"""Signals that end a command: SIGINT (Ctrl-C), SIGTERM and SIGHUP. The run writes a checkpoint first.

`handled` installs handlers in a process of the command line; a Python program that imports tarry keeps its own. The
first signal raises `Interrupted` in the main thread, at once or, in a block `deferred`, where the state of the run is
consistent: while a result or an evaluation is awaited (`WAITING`) and at `check`. A second signal ends the process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..executors.watchdog import unblock_signals

__all__ = ["WAITING", "Interrupted", "check", "deferred", "handled"]


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end. `number` is the signal, `name` its name."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number, self.name = number, signal.Signals(number).name


_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGINT,)


class _SignalState:
    pending: int | None = None  # the first signal
    is_deferred = False
    is_waiting = False
    is_child = False


_state = _SignalState()


@contextmanager
def handled(*, child: bool = False) -> Iterator[None]:
    """Raise `Interrupted` at the first signal. Signals that the process ignores (`nohup`) stay ignored.

    A `child` of a command ignores further signals: a terminal sends one to both, and the parent passes its own on. It
    also ignores them at the end, when it only has to send what it found: the handlers that it inherited would raise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.pending, _state.is_deferred, _state.is_waiting, _state.is_child = None, False, False, child
    found: dict[int, Any] = {n: signal.getsignal(n) for n in _NUMBERS}
    before = {n: handler for n, handler in found.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, _handle)
    after = dict.fromkeys(before, _ignore) if child else before
    try:
        if child:
            unblock_signals()
        yield
    except KeyboardInterrupt as e:  # the handlers stay as they are, for a second signal
        _raise_ours(e)
        raise
    except BaseException:
        _restore(after)
        raise
    _restore(after)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. With SIG_IGN in its place, Python reports a signal that arrived a moment before."""


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def _handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - of the protocol
    if _state.pending is None:
        _state.pending = number
        if not _state.is_child:  # a child keeps this handler: Python reports a signal whose handler was just removed
            for other in (signal.SIGINT, signal.SIGTERM):
                signal.signal(other, signal.SIG_DFL)
        if _state.is_waiting or not _state.is_deferred:
            _raise()
    elif not _state.is_child and number in (signal.SIGINT, signal.SIGTERM):  # a handler that Ray has put back
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _raise() -> None:
    _state.is_waiting = False
    assert _state.pending is not None
    raise Interrupted(_state.pending)


def _raise_ours(e: BaseException | None) -> None:
    """Raise Interrupted in the place of a KeyboardInterrupt that Ray made of it."""
    if isinstance(e, KeyboardInterrupt) and not isinstance(e, Interrupted) and _state.pending is not None:
        raise Interrupted(_state.pending) from e


def check() -> None:
    """Raise `Interrupted` if there was a signal."""
    if _state.pending is not None:
        _raise()


@contextmanager
def deferred() -> Iterator[None]:
    """Raise `Interrupted` inside only at `check` and in `WAITING`, or at the end."""
    _state.is_deferred = True
    try:
        yield
    finally:
        _state.is_deferred = False
    check()


class _Waiting:
    """A context, entered as often as needed, in which a signal raises `Interrupted` at once."""

    def __enter__(self) -> None:
        _state.is_waiting = True
        if _state.pending is not None:
            _raise()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _state.is_waiting = False
        _raise_ours(error)


WAITING = _Waiting()
