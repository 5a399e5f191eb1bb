"""Progress of a long read on standard error."""

from __future__ import annotations

import sys
import time

__all__ = ["SlowReadNotice"]

_QUIET = 2.0  # seconds of reading before the first notice


class SlowReadNotice:
    """Progress of a long read on standard error: nothing for two seconds, then a line every five seconds.

    If the `total` is known, a line has the time that is left.
    """

    def __init__(self, what: str, total: int | None = None):
        self._what, self._total, self._begun, self._next = what, total, time.monotonic(), _QUIET

    def __call__(self, done: int) -> None:
        passed = time.monotonic() - self._begun
        if passed > self._next:
            self._next = passed + 5
            of, left = "", ""
            if self._total is not None and done:
                of, left = f" of {self._total:,}", f", {passed * (self._total - done) / done:.0f} s left"
            sys.stderr.write(f"{self._what}: {done:,}{of} read, {passed:.0f} s{left}\n")
