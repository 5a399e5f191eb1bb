"""Deadlines learned from each client's own visits, and the back-off after failures.

    deadline   2 · the longest of its last visits, at least mean + 4 sd, and a grace; never above the bound
    back-off   5 s after a first failure, twice as long after each further one, at most 10 minutes; each visit that
               ends well takes a quarter of a failure off, so four of them undo one doubling

A client's first visit has the bound alone. Visits that came too late count, so a client that became slower gets more
time.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, pstdev
from typing import Any

__all__ = ["Deadlines"]

_WINDOW = 20  # last visits of a client that count
_GRACE = 15.0  # seconds added for Flower's own sleeps and polls
_CREDIT = 0.25  # of a failure, that a visit which ended well takes off
_MAX_FAILURES = 8.0  # that are counted: the back-off does not grow further
_FIRST_BACK_OFF, _MAX_BACK_OFF = 5.0, 600.0  # seconds


class Deadlines:
    """Durations and failures by client."""

    def __init__(self, bound: float):
        self.bound = bound
        self._durations: dict[int, deque[float]] = {}
        self._failures: dict[int, float] = {}  # less what visits that ended well took off

    def record_duration(self, client: int, seconds: float, *, late: bool = False) -> None:
        """Count a visit; one that was not late takes a part off the client's failures."""
        self._durations.setdefault(client, deque(maxlen=_WINDOW)).append(seconds)
        if late or client not in self._failures:
            return
        self._failures[client] -= _CREDIT
        if self._failures[client] <= 0:
            del self._failures[client]

    def record_failure(self, client: int) -> float:
        """Count one more failure; return the seconds for which the client gets no work."""
        count = self._failures[client] = min(self._failures.get(client, 0.0) + 1.0, _MAX_FAILURES)
        return min(_MAX_BACK_OFF, _FIRST_BACK_OFF * 2.0 ** int(count - 1))

    def forget(self, client: int) -> None:
        """Forget what was learned of a client, whose place has been released."""
        self._durations.pop(client, None)
        self._failures.pop(client, None)

    def deadline(self, client: int) -> float:
        """Return the seconds that the client's next visit may take."""
        durations = self._durations.get(client)
        if not durations:
            return self.bound
        return min(self.bound, max(2 * max(durations), fmean(durations) + 4 * pstdev(durations)) + _GRACE)

    def save(self) -> dict[str, Any]:
        return {"took": {c: list(d) for c, d in self._durations.items()}, "failed": dict(self._failures)}

    def load(self, saved: dict[str, Any]) -> None:
        self._durations = {c: deque(d, maxlen=_WINDOW) for c, d in saved["took"].items()}
        self._failures = dict(saved["failed"])
