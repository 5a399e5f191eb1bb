"""How long a client may take, learnt from its own visits; and how long one that fails is left alone.

    deadline   2 · the longest of its last visits, at least mean + 4 sd, and a grace; never above the bound
    backoff    5 s after a first failure, twice as long after each further one, at most 10 minutes

A first visit has the bound alone. Visits that came too late count, so that a client that became slower is waited for.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, pstdev
from typing import Any

__all__ = ["Pace"]

_KEPT = 20  # visits a client is known by
_GRACE = 15.0  # seconds: Flower's own sleeps and polls
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0


class Pace:
    """Durations and failures by client."""

    def __init__(self, bound: float):
        self.bound = bound
        self._took: dict[int, deque[float]] = {}
        self._failed: dict[int, int] = {}  # in a row

    def came(self, client: int, seconds: float, *, late: bool = False) -> None:
        self._took.setdefault(client, deque(maxlen=_KEPT)).append(seconds)
        if not late:
            self._failed.pop(client, None)

    def failed(self, client: int) -> float:
        """One more failure in a row; returns the seconds for which the client is left alone."""
        count = self._failed[client] = self._failed.get(client, 0) + 1
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(count - 1, 20))

    def deadline(self, client: int) -> float:
        """Seconds that its next visit may take."""
        took = self._took.get(client)
        if not took:
            return self.bound
        return min(self.bound, max(2 * max(took), fmean(took) + 4 * pstdev(took)) + _GRACE)

    def mean(self, client: int) -> float | None:
        took = self._took.get(client)
        return fmean(took) if took else None

    def save(self) -> dict[str, Any]:
        return {"took": {c: list(d) for c, d in self._took.items()}, "failed": dict(self._failed)}

    def load(self, saved: dict[str, Any]) -> None:
        self._took = {c: deque(d, maxlen=_KEPT) for c, d in saved["took"].items()}
        self._failed = dict(saved["failed"])
