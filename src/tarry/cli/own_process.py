"""A process of its own for a command that uses Ray, because Ray ends a process at once when its cluster ends.

The first process waits, passes signals on, and says how to continue if Ray ended the other one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

from . import console

__all__ = ["ENVIRONMENT", "in_own_process", "is_own_process", "report_code"]

ENVIRONMENT = "TARRY_OWN_PROCESS"  # the file descriptor on which the process says that it ends by itself
_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
_PARENT_DEATH_SIGNAL = 1  # of prctl on Linux


def is_own_process() -> bool:
    """Return whether this is the second process."""
    return ENVIRONMENT in os.environ


def report_code(code: int) -> None:
    """Say that this process ends by itself, with this exit code and a message where it needs one."""
    with contextlib.suppress(OSError, ValueError):
        os.write(int(os.environ[ENVIRONMENT]), str(code).encode())


def in_own_process(way_out: str, address: str | None) -> None:
    """Run this command again in another process and end with its exit code; in that process, do nothing."""
    if is_own_process():
        os.set_inheritable(int(os.environ[ENVIRONMENT]), False)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        return
    read, write = os.pipe()
    environment = {**os.environ, ENVIRONMENT: str(write)}
    command = [sys.executable, "-m", "tarry", *sys.argv[1:]]
    with subprocess.Popen(command, env=environment, pass_fds=[write]) as process:
        os.close(write)
        passed_on = _pass_signals_on(process)
        code = process.wait()
    if (reported := _reported_code(read)) is not None:
        raise SystemExit(reported)
    if passed_on:
        console.print_error(f"interrupted by {passed_on[0].name}; {way_out}")
        raise SystemExit(128 + passed_on[0])
    if code != 1:
        console.print_error(f"the process of this command was killed (code {code}); {way_out}")
        raise SystemExit(128 - code)
    where = "on this machine" if address is None else f"at {address}"
    console.print_error(f"the Ray cluster {where} has ended, and with it the process of this command; {way_out}")
    raise SystemExit(2)


def _reported_code(read: int) -> int | None:
    """Return the exit code that the process reported, if it ended by itself."""
    os.set_blocking(read, False)  # a process that Ray left behind may hold the other end
    with contextlib.suppress(BlockingIOError, ValueError):
        return int(os.read(read, 10))
    return None


def _pass_signals_on(process: subprocess.Popen[bytes]) -> list[signal.Signals]:
    """Pass the first signal on; the second one ends both processes. Signals that are ignored (nohup) stay ignored.

    Return the list to which the first signal is added.
    """
    first = list[signal.Signals]()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - of the protocol
        if not first:
            first.append(signal.Signals(number))
            process.send_signal(number)
        else:
            process.kill()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    return first
