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

from ..core.errors import WorkerDied
from ..runs.signals import Interrupted
from .lazy import OWN_PROCESS

__all__ = ["in_own_process", "is_own_process", "report_code"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
_PARENT_DEATH_SIGNAL = 1  # of prctl on Linux


def is_own_process() -> bool:
    """Return whether this is the second process."""
    return OWN_PROCESS in os.environ


def report_code(code: int) -> None:
    """Say that this process ends by itself, with this exit code and a message where it needs one."""
    with contextlib.suppress(OSError, ValueError):
        os.write(int(os.environ[OWN_PROCESS]), str(code).encode())


def in_own_process(address: str | None) -> None:
    """Run this command again in another process and end as it ends; in that process, do nothing.

    Call this in `console.on_interrupt`, which says how to continue.
    """
    if is_own_process():
        os.set_inheritable(int(os.environ[OWN_PROCESS]), False)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        return
    read, write = os.pipe()
    environment = {**os.environ, OWN_PROCESS: str(write)}
    command = [sys.executable, "-m", "tarry", *sys.argv[1:]]
    # a terminal's signals go to this process alone: they would end the processes of Ray before a checkpoint is written
    with subprocess.Popen(command, env=environment, pass_fds=[write], process_group=0) as process:
        os.close(write)
        forwarded = _pass_signals_on(process)
        code = process.wait()
    if (reported := _reported_code(read)) is not None:
        raise SystemExit(reported)
    if forwarded:
        raise Interrupted(forwarded[0])
    if code != 1:
        raise WorkerDied(f"the process of this command was killed (code {code})")
    where = "on this machine" if address is None else f"at {address}"
    raise WorkerDied(f"the Ray cluster {where} has ended, and with it the process of this command")


def _reported_code(read: int) -> int | None:
    """Return the exit code that the process reported, if it ended by itself."""
    os.set_blocking(read, False)  # a process that Ray left behind may hold the other end
    with contextlib.suppress(BlockingIOError, ValueError):
        return int(os.read(read, 10))
    return None


def _pass_signals_on(process: subprocess.Popen[bytes]) -> list[int]:
    """Pass the first signal on; the second one ends both processes. Signals that are ignored (nohup) stay ignored.

    Return the list to which the first signal is added.
    """
    first = list[int]()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - of the protocol
        if not first:
            first.append(number)
            process.send_signal(number)
        else:
            process.kill()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    return first
