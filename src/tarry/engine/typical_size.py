"""Typical sizes: running medians of what clients report, of all and of each client, to tell sizes that cannot be right.

A median moves by a small factor with each report, up if it was larger and down if it was smaller. So no single report
moves it far, however large; a minority of clients cannot carry it away; and it follows when all sizes change. Reports
that were rejected count too: else sizes that changed for good would be rejected for ever. A client that reports more
often than others moves the common median less each time. The memory is two numbers for each client.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, inf
from statistics import median_low
from typing import Any

__all__ = ["TypicalSize"]

_FIRST_REPORTS, _FIRST_CLIENTS = 10, 3  # after which the common median is used
_OWN_REPORTS = 4  # after which a client's own median is used
_STEP, _OWN_STEP = 0.1, 0.2  # logarithms by which a report moves the medians


class TypicalSize:
    """The running medians of one kind of number: a norm, or a count.

    `multiple`, `own_multiple`: how many times the medians a number may be; `at_first`: the limit until the common
    median is known; `clients`: how many there are.
    """

    def __init__(self, multiple: float, own_multiple: float, *, at_first: float, clients: int):
        self._multiple, self._own_multiple, self._at_first = multiple, own_multiple, at_first
        self._clients = clients
        self._median = 0.0  # of all; 0: not known yet
        self._reports = 0
        self._own: dict[int, tuple[float, int]] = {}  # client → its median, its reports

    def limit(self, client: int) -> float:
        """Return the most that the client's next number may be."""
        limit = self._multiple * self._median if self._median else self._at_first
        own, reports = self._own.get(client, (inf, 0))
        return min(limit, self._own_multiple * own) if reports >= _OWN_REPORTS else limit

    def learn(self, client: int, size: float) -> None:
        """Move the medians by a number that was reported; 0 says nothing about the size of others."""
        if not 0 < size < inf:
            return
        own, reports = self._own.get(client, (size, 0))
        self._own[client] = (_moved(own, size, _OWN_STEP), reports + 1)
        self._reports += 1
        if self._median:
            share = self._reports / (len(self._own) * (reports + 1))  # below 1 for clients that report often
            self._median = _moved(self._median, size, _STEP * min(1.0, share))
        elif self._reports >= _FIRST_REPORTS and len(self._own) >= min(_FIRST_CLIENTS, self._clients):
            self._median = median_low([median for median, _ in self._own.values()])

    def save(self) -> dict[str, Any]:
        own = [[client, median, reports] for client, (median, reports) in self._own.items()]
        return {"median": self._median, "reports": self._reports, "own": own}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._median, self._reports = saved["median"], saved["reports"]
        self._own = {client: (median, reports) for client, median, reports in saved["own"]}


def _moved(median: float, size: float, step: float) -> float:
    """Return the median, moved towards the size by at most `step`, in logarithms."""
    return min(size, median * exp(step)) if size > median else max(size, median * exp(-step))
