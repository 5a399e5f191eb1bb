"""Deadlines learned from each client's own visits, and the back-off after failures.

    deadline   2 · the longest of its last visits, at least mean + 4 sd, and a grace; never above the bound
    back-off   5 s after a first failure, twice as long after each further one, at most 10 minutes

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
_FIRST_BACK_OFF, _MAX_BACK_OFF = 5.0, 600.0  # seconds


class Deadlines:
    """Durations and failures by client."""

    def __init__(self, bound: float):
        self.bound = bound
        self._durations: dict[int, deque[float]] = {}
        self._failures: dict[int, int] = {}  # in a row

    def record_duration(self, client: int, seconds: float, *, late: bool = False) -> None:
        """Count a visit; one that was not late ends a row of failures."""
        self._durations.setdefault(client, deque(maxlen=_WINDOW)).append(seconds)
        if not late:
            self._failures.pop(client, None)

    def record_failure(self, client: int) -> float:
        """Count one more failure in a row; return the seconds for which the client gets no work."""
        count = self._failures[client] = self._failures.get(client, 0) + 1
        return min(_MAX_BACK_OFF, _FIRST_BACK_OFF * 2.0 ** min(count - 1, 20))

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
