"""What a run notes about itself when it is asked to (--diagnose): means over stretches of virtual time.

series          every note of an arrival (cosine, drift, what the method adds), its mean over each stretch
participation   how many updates of each client were accepted
seconds         how long each client's visits took, on average
validation      for the first few clients: score of what they were handed, on a set with their own mix of classes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import isfinite
from typing import Any

from torch import Tensor

from ..core.tickets import Ticket

__all__ = ["Diary", "Validate"]

Validate = Callable[[int, Tensor], tuple[float | None, float]]  # client, weights → accuracy, loss
_FOLLOWED = 12  # clients whose validation is kept


class Diary:
    """Notes in bins of `every` virtual seconds; saves and loads as a plain record."""

    def __init__(self, every: float, validate: Validate | None = None):
        self._every, self._validate = every, validate
        self._sums: dict[str, dict[int, list[Any]]] = {}  # name → bin → [count, sum, sum, ...]
        self._came: Counter[int] = Counter()
        self._seconds: dict[int, list[float]] = {}  # client → [visits, seconds]
        self._validation: dict[int, list[list[float | None]]] = {}

    def hand_out(self, ticket: Ticket, seconds: float) -> None:
        visits = self._seconds.setdefault(ticket.client, [0, 0.0])
        visits[0] += 1
        visits[1] += seconds
        if self._validate is not None and ticket.client < _FOLLOWED:
            accuracy, loss = self._validate(ticket.client, ticket.sent)
            self._validation.setdefault(ticket.client, []).append([ticket.visit, accuracy, loss])

    def arrival(self, time: float, client: int, notes: dict[str, Any]) -> None:
        self._came[client] += 1
        self.noted(time, notes)

    def noted(self, time: float, notes: dict[str, Any]) -> None:
        stretch = int(time / self._every) if isfinite(self._every) else 0
        for name, value in notes.items():
            values = value if isinstance(value, list) else [value]
            if not all(isfinite(v) for v in values):
                continue
            there = self._sums.setdefault(name, {}).get(stretch, [0, *([0.0] * len(values))])
            self._sums[name][stretch] = [there[0] + 1, *(a + b for a, b in zip(there[1:], values, strict=True))]

    def seconds_of(self, client: int) -> float | None:
        """The mean duration of a client's visits."""
        visits = self._seconds.get(client)
        return visits[1] / visits[0] if visits else None

    def summary(self) -> dict[str, Any]:
        """For result.json: series as (the stretch's middle, mean, how many), lists of means where notes were lists."""
        width = self._every if isfinite(self._every) else 0.0
        series = {
            name: [[(k + 0.5) * width, _means(s), s[0]] for k, s in sorted(bins.items())]
            for name, bins in self._sums.items()
        }
        return {
            "every": width,
            "series": series,
            "participation": {str(c): n for c, n in sorted(self._came.items())},
            "seconds": {str(c): v[1] / v[0] for c, v in sorted(self._seconds.items())},
            "validation": {str(c): v for c, v in sorted(self._validation.items())},
        }

    def save(self) -> dict[str, Any]:
        return {
            "sums": self._sums,
            "came": dict(self._came),
            "seconds": self._seconds,
            "validation": self._validation,
        }

    def load(self, saved: dict[str, Any]) -> None:
        self._sums, self._came = saved["sums"], Counter(saved["came"])
        self._seconds, self._validation = saved["seconds"], saved["validation"]


def _means(sums: list[Any]) -> float | list[float]:
    means = [s / sums[0] for s in sums[1:]]
    return means[0] if len(means) == 1 else means
