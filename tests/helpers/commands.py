"""The command line in this process, with a limit of time for each call."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from unittest.mock import patch

from tarry.cli.app import main


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer: it hangs."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def restored_handlers() -> Iterator[None]:
    """Restore the handlers of signals, which an interrupted command leaves as they are."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def call_command(*args: str) -> tuple[int, str]:
    """Run `tarry ARGS`; return the exit code, and all that it printed."""
    out = io.StringIO()
    with (
        restored_handlers(),
        patch.object(sys, "argv", ["tarry", *args]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            main()
            code = 0
        except SystemExit as e:
            code = 0 if e.code is None else int(e.code)
    return code, out.getvalue()
