"""Watchdog: ends processes of this machine that no longer respond, so that their owner replaces them.

A process shows that it responds by a count, which a thread of it increments, and by the processor time that it uses. A
process that is stopped, or hangs in the kernel, shows neither. One that trains for hours shows both; so does one in an
endless loop, which is not ended. Native code that keeps Python's lock (the GIL) shows processor time only.

Signals that end a command are blocked while a process starts, until it has its own handlers (`unblock_signals`).
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["TIMEOUT", "Watchdog", "beat", "end_within", "new_count", "signals_blocked", "unblock_signals"]

TIMEOUT = 60.0  # seconds without a sign, after which a process is ended
_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
_INTERVAL = 0.5  # seconds between two signs, and between two looks
_COUNTED = 2.0  # seconds between two looks that count at most: more pass only if this process itself was stopped


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals that end a command; they arrive at the end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals() -> None:
    """Let a process that `Watchdog.start` started have its signals."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def new_count() -> Any:
    """Return a count in memory that a process shares with its children."""
    return mp.RawValue(ctypes.c_uint64, 0)


def beat(count: Any) -> None:
    """Increment the count twice a second, in a thread of this process."""

    def increment() -> None:
        while True:
            count.value += 1
            time.sleep(_INTERVAL)

    threading.Thread(target=increment, name="tarry-beat", daemon=True).start()


def _begin(target: Callable[..., None], args: tuple[Any, ...], count: Any) -> None:
    beat(count)
    target(*args)


def end_within(processes: Iterable[Any], seconds: float) -> None:
    """Wait for processes to end; kill those that have not ended in time."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


class _Watched:
    def __init__(self, process: Any, count: Any):
        self.process, self._count = process, count
        self._sign: Any = None
        self._silence = 0.0  # seconds

    def silence(self, passed: float) -> float:
        """Return for how many seconds there was no sign; `passed`: seconds since the last call."""
        sign = (self._count.value, _processor_time(self.process.pid))
        self._silence = 0.0 if sign != self._sign else self._silence + passed
        self._sign = sign
        return self._silence


class Watchdog:
    """Kills each watched process that gives no sign for `timeout` seconds; 0: never.

    A thread of this process looks twice a second. Time in which this process was stopped does not count.
    """

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._watched: dict[int, _Watched] = {}
        self._killed: set[int] = set()
        self._lock, self._is_stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, context: Any, target: Callable[..., None], args: tuple[Any, ...], *, daemon: bool) -> Any:
        """Start a process and watch it. Its target calls `unblock_signals` when it has set its handlers."""
        count = new_count()
        process = context.Process(target=_begin, args=(target, args, count), daemon=daemon)
        self.stop()
        with signals_blocked():
            process.start()
        self.watch(process, count)
        return process

    def watch(self, process: Any, count: Any) -> None:
        """Watch a process that was started with this count."""
        if not self._timeout:
            return
        with self._lock:
            self._killed.discard(process.pid)
            self._watched[process.pid] = _Watched(process, count)
        if self._thread is None:
            self._is_stopped.clear()
            self._thread = threading.Thread(target=self._run, name="tarry-watchdog", daemon=True)
            self._thread.start()

    def release(self, process: Any) -> str:
        """Watch a process no longer; return why it was killed, if it was, else an empty text."""
        with self._lock:
            self._watched.pop(process.pid, None)
            return f"did not respond for {self._timeout:g} s" if process.pid in self._killed else ""

    def stop(self) -> None:
        """End the thread, until `watch` is called again: a process that forks has no thread then."""
        if self._thread is not None:
            self._is_stopped.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        last = time.monotonic()
        while not self._is_stopped.wait(_INTERVAL):
            last, before = time.monotonic(), last
            self._look(last - before)

    def _look(self, passed: float) -> None:
        """Kill the processes that are silent too long; `passed`: seconds since the last look."""
        with self._lock:
            for pid, watched in list(self._watched.items()):
                if watched.silence(min(passed, _COUNTED)) >= self._timeout:
                    self._killed.add(pid)
                    del self._watched[pid]
                    watched.process.kill()


def _processor_time(pid: int) -> list[str]:
    """Return the processor time of a process as the system writes it; [] where it does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except (OSError, ValueError):
        return []
