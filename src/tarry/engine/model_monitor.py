"""Monitor of the global model: it finds that the loss explodes, and keeps the last healthy state of the server.

    explosion   the loss is not finite, or above a multiple of the median of the last healthy ones (which counts as a
                tenth of the first loss at least, so that small losses may vary)
    restore     shortly after it the server returns to its state at the last healthy score
    pause       then no tickets are handed out for a while, four times as long at each further explosion; each healthy
                score halves the next pause

One state is kept. It shares its tensors with the running server, so it costs what has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from statistics import median_low
from typing import Any

from .clock import add_seconds

__all__ = ["ModelMonitor"]

_LAST = 5  # healthy losses whose median counts
_LEAST_SHARE = 0.1  # of the first loss
_UNTIL_RESTORE = 1e-6  # seconds from the score to the instant of the restore
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 3600.0  # seconds


class ModelMonitor:
    """Losses of the global model, the last healthy state, and what is due after an explosion."""

    def __init__(self, multiple: float):
        self.multiple = multiple  # of the typical loss, above which it explodes
        self.healthy: Any = None  # state of the server at the last healthy score
        self.alarms = 0
        self.restore_at = inf  # time of the restore that is due
        self.paused_until = -inf  # no tickets are handed out before
        self._first: float | None = None
        self._last: list[float] = []
        self._doublings = 0  # of the next pause

    @property
    def limit(self) -> float:
        """The loss above which the model is not healthy."""
        typical = 0.0 if self._first is None else max(median_low(self._last), _LEAST_SHARE * self._first)
        return self.multiple * typical if typical > 0 else inf  # a loss may be negative

    def observe(self, loss: float) -> bool:
        """Take a loss into account; return whether it is healthy."""
        if not isfinite(loss) or loss > self.limit:
            return False
        if self._first is None:
            self._first = loss
        self._last = [*self._last, loss][-_LAST:]
        self._doublings = max(0, self._doublings - 1)
        return True

    def raise_alarm(self, time: float) -> None:
        """Schedule the restore and the pause after a loss that was not healthy."""
        self.alarms += 1
        self.restore_at = add_seconds(time, _UNTIL_RESTORE)
        self.paused_until = add_seconds(self.restore_at, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._doublings))
        self._doublings = min(self._doublings + 2, 20)

    def next_wakeup(self, time: float) -> float:
        """Return the time after `time` at which something is due; inf if nothing is."""
        if self.restore_at < inf:
            return self.restore_at
        return self.paused_until if self.paused_until > time else inf

    def save(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SAVED}

    def load(self, saved: Mapping[str, Any]) -> None:
        for name in _SAVED:
            setattr(self, name, saved[name])


_SAVED = ("healthy", "alarms", "restore_at", "paused_until", "_first", "_last", "_doublings")
