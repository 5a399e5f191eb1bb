"""Commands of tarry in processes of their own: forks of this process, which has torch loaded, or a new Python.

A fork begins at once, where a new Python needs seconds. Every command leads a process group, and is killed when this
process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import multiprocessing.util
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

__all__ = ["Child", "Failure", "command", "end_all", "preload"]

PATIENCE = 240.0  # seconds that a command may take, on a slow machine under load
_MODULES = (
    *(f"tarry.cli.{name}" for name in ("app", "run", "resume", "verify", "report", "compare")),
    *(f"tarry.runs.{name}" for name in ("run", "compare", "verify", "rerun")),
    *("tarry.executors.pool", "tarry.executors.batched.trainer", "tarry.report.page", "tarry.report.terminal"),
    *("safetensors.numpy", "matplotlib.pyplot", "torch.func"),
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # of Linux: the signal for a process whose parent has ended

Work = Callable[[], object]
_running: set[Child] = set()


class Failure(Exception):
    """A property that does not hold."""


def preload() -> None:
    """Import what the commands need, and start no thread, which a fork would lose."""
    for name in _MODULES:
        importlib.import_module(name)


def command(*args: str | Path, fresh: bool = False, prepare: Work = lambda: None) -> Child:
    """Start a command of tarry, as a fork or in a fresh Python; `prepare` is called in the new process."""
    words = [str(a) for a in args]

    def work() -> None:
        prepare()
        if fresh:
            os.execv(sys.executable, [sys.executable, "-m", "tarry", *words])
        from tarry.cli.app import main

        sys.argv = ["tarry", *words]
        main()

    return Child(work, shlex.join(["tarry", *words]))


def end_all() -> None:
    """Kill every command, with the processes that it started."""
    for child in list(_running):
        child.kill()
        child.wait()


class Child:
    """A process that does some work. Its standard output and error are read together."""

    def __init__(self, work: Work, title: str):
        self.title, self._output = title, bytearray()
        self.code: int | None = None  # exit code, negative for a signal; None while the process runs
        self._pipe, theirs = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            _do(work, theirs)
        _running.add(self)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(theirs)
        os.set_blocking(self._pipe, False)

    @property
    def text(self) -> str:
        return self._output.decode(errors="replace")

    def has_ended(self) -> bool:
        """Return whether the process has ended; read what it has printed."""
        if self.code is not None:
            return True
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._pipe, 1 << 16):
                self._output += part
        if pid:
            self.code = os.waitstatus_to_exitcode(status)
            os.close(self._pipe)
            _running.discard(self)
        return self.code is not None

    def wait(self, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the condition holds or the process has ended; return whether it holds while the process runs."""
        end = time.monotonic() + PATIENCE
        while not self.has_ended():
            if condition():
                return True
            if time.monotonic() > end:
                raise Failure(f"{self.title} has not ended after {PATIENCE:.0f} s")
            time.sleep(0.001)
        return False

    def send(self, number: int) -> None:
        """Send a signal to the process alone."""
        if self.code is None:
            os.kill(self.pid, number)

    def send_to_group(self, number: int) -> None:
        """Send a signal to the process and all that it has started, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        self.send_to_group(signal.SIGKILL)

    def workers(self) -> list[int]:
        """Return the processes that it has started and that run."""
        return [pid for pid in _group(self.pid) if pid != self.pid]

    def wait_for_workers(self) -> None:
        """Wait until the processes of a command that has ended have ended, too."""
        end = time.monotonic() + PATIENCE / 4
        while self.workers():
            if time.monotonic() > end:
                raise Failure(f"{self.title} has ended, but not the processes that it started")
            time.sleep(0.002)


def _group(leader: int) -> list[int]:
    """Return the processes of a group, without those that have ended and wait for their parent."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def _do(work: Work, out: int) -> NoReturn:
    """Do the work in this new process, and end as an interpreter does."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in _SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        _running.clear()
        work()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            multiprocessing.util._exit_function()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
