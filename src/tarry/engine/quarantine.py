"""Quarantine: clients that send rejected updates again and again get no work for a while.

    demerits   1 for each rejected update; an accepted one takes a quarter off
    period     at three demerits the client is out for a first period, twice as long each further time

A client that comes back is one rejection away from its next period. So one good answer resets nothing: after twelve in
a row the demerits are gone, and then each four shorten the next period by one doubling.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from .clock import add_seconds

__all__ = ["Quarantine"]

_QUOTA = 3.0  # demerits at which a client is quarantined
_CREDIT = 0.25  # demerits that an accepted update takes off
_LONGEST = 24 * 3600.0  # seconds, unless the first period is longer


class Quarantine:
    """Demerits and periods by client; only clients that had an update rejected take memory."""

    def __init__(self, first_period: float):
        self._first_period = first_period  # seconds; 0: no client is quarantined
        self._demerits: dict[int, float] = {}
        self._times: dict[int, float] = {}  # how often a client was quarantined, less what good updates took off
        self._until: dict[int, float] = {}

    def record_rejection(self, client: int, time: float) -> float | None:
        """Count a rejected update; return until when the client is quarantined now, None if it is not or was before."""
        if self.until(client) > time:  # of a ticket that it held before
            return None
        demerits = self._demerits[client] = min(self._demerits.get(client, 0.0) + 1.0, _QUOTA)
        if demerits < _QUOTA or self._first_period == 0:
            return None
        times = self._times.get(client, 0.0)
        period = min(max(_LONGEST, self._first_period), self._first_period * 2.0 ** min(int(times), 60))
        self._times[client], self._demerits[client] = times + 1.0, _QUOTA - 1.0
        until = self._until[client] = add_seconds(time, period)
        return until

    def record_acceptance(self, client: int) -> None:
        """Count an accepted update."""
        if client not in self._demerits:
            return
        if (demerits := self._demerits[client] - _CREDIT) > 0:
            self._demerits[client] = demerits
        elif (times := self._times.get(client, 0.0) - _CREDIT) > 0:
            self._demerits[client], self._times[client] = 0.0, times
        else:
            for table in (self._demerits, self._times, self._until):
                table.pop(client, None)

    def until(self, client: int) -> float:
        """Return the time up to which the client gets no work; −inf if it was never quarantined."""
        return self._until.get(client, -inf)

    def quarantined(self, time: float) -> dict[int, float]:
        """Return the clients that are quarantined now, and until when."""
        return {client: until for client, until in sorted(self._until.items()) if until > time}

    def save(self) -> dict[str, Any]:
        return {"demerits": dict(self._demerits), "times": dict(self._times), "until": dict(self._until)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._demerits, self._times = dict(saved["demerits"]), dict(saved["times"])
        self._until = dict(saved["until"])
