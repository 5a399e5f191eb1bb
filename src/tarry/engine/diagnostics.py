"""Diagnostics of a run (--diagnose): means over bins of virtual time.

series          every note of an arrival (cosine, drift, what the method adds): its mean in each bin
participation   how many updates of each client were accepted
seconds         how long each client's visits took, on average
validation      for the first few clients: score of the weights they start from, on a set with their mix of classes

The record has a bounded size. A run with more than _BINS bins doubles their width, and a client with more than _POINTS
validations keeps those of every second visit, then of every fourth, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import isfinite
from typing import Any

from torch import Tensor

from ..core.tickets import Ticket

__all__ = ["DiagnosticsLog", "Validate"]

Validate = Callable[[int, Tensor], tuple[float | None, float]]  # client, weights → accuracy, loss
_VALIDATED = 12  # clients whose validation is kept
_POINTS = 512  # validations of a client
_BINS = 512


class DiagnosticsLog:
    """Notes in bins of `every` seconds; saves and loads as a plain record."""

    def __init__(self, every: float, validate: Validate | None = None):
        self._first_every, self._validate = every, validate
        self._doublings = 0  # of the width of a bin
        self._sums: dict[str, dict[int, list[Any]]] = {}  # name → bin → [count, sum, sum, ...]
        self._participation: Counter[int] = Counter()
        self._seconds: dict[int, list[float]] = {}  # client → [visits, seconds]
        self._validation: dict[int, list[list[Any]]] = {}  # client → [visit, accuracy, loss]
        self._strides: dict[int, int] = {}  # client → visits from one validation to the next, where it is not 1

    @property
    def _every(self) -> float:
        return self._first_every * 2.0**self._doublings

    def hand_out(self, ticket: Ticket, seconds: float) -> None:
        visits = self._seconds.setdefault(ticket.client, [0, 0.0])
        visits[0] += 1
        visits[1] += seconds
        if self._validate is not None and ticket.client < _VALIDATED:
            self._record_validation(ticket, self._validate)

    def _record_validation(self, ticket: Ticket, validate: Validate) -> None:
        client, stride = ticket.client, self._strides.get(ticket.client, 1)
        if ticket.visit % stride:
            return
        points = self._validation.setdefault(client, [])
        points.append([ticket.visit, *validate(client, ticket.sent)])
        if len(points) > _POINTS:
            self._strides[client] = 2 * stride
            self._validation[client] = [point for point in points if point[0] % (2 * stride) == 0]

    def arrival(self, time: float, client: int, notes: dict[str, Any]) -> None:
        self._participation[client] += 1
        self.record_notes(time, notes)

    def record_notes(self, time: float, notes: dict[str, Any]) -> None:
        bin_ = int(time / self._every) if isfinite(self._every) else 0
        while bin_ >= _BINS:
            self._double_bins()
            bin_ //= 2
        for name, value in notes.items():
            values = value if isinstance(value, list) else [value]
            if not all(isfinite(v) for v in values):
                continue
            bin_sums = self._sums.setdefault(name, {}).get(bin_, [0, *([0.0] * len(values))])
            self._sums[name][bin_] = [bin_sums[0] + 1, *(a + b for a, b in zip(bin_sums[1:], values, strict=True))]

    def _double_bins(self) -> None:
        self._doublings += 1
        for name, bins in self._sums.items():
            merged: dict[int, list[Any]] = {}
            for bin_, sums in sorted(bins.items()):
                others = merged.get(bin_ // 2)
                merged[bin_ // 2] = sums if others is None else [a + b for a, b in zip(others, sums, strict=True)]
            self._sums[name] = merged

    def seconds_of(self, client: int) -> float | None:
        """Return the mean duration of a client's visits, None if it had none."""
        visits = self._seconds.get(client)
        return visits[1] / visits[0] if visits else None

    def summary(self) -> dict[str, Any]:
        """Return the entry of result.json: series as (bin middle, mean, count), means as lists where notes are."""
        width = self._every if isfinite(self._every) else 0.0
        series = {
            name: [[(k + 0.5) * width, _means(s), s[0]] for k, s in sorted(bins.items())]
            for name, bins in self._sums.items()
        }
        return {
            "every": width,
            "series": series,
            "participation": {str(c): n for c, n in sorted(self._participation.items())},
            "seconds": {str(c): v[1] / v[0] for c, v in sorted(self._seconds.items())},
            "validation": {str(c): v for c, v in sorted(self._validation.items())},
        }

    def save(self) -> dict[str, Any]:
        return {
            "sums": self._sums,
            "came": dict(self._participation),
            "seconds": self._seconds,
            "validation": self._validation,
            **({"doublings": self._doublings} if self._doublings else {}),
            **({"strides": self._strides} if self._strides else {}),
        }

    def load(self, saved: dict[str, Any]) -> None:
        self._sums, self._participation = saved["sums"], Counter(saved["came"])
        self._seconds, self._validation = saved["seconds"], saved["validation"]
        self._doublings, self._strides = saved.get("doublings", 0), saved.get("strides", {})


def _means(sums: list[Any]) -> float | list[float]:
    means = [s / sums[0] for s in sums[1:]]
    return means[0] if len(means) == 1 else means
