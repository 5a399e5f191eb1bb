"""Delays and availability from the record of a federation, with which a simulator repeats it.

The simulator then makes the same calls of the server, in the same order, at the same times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from ..core.errors import DamagedFile
from ..core.rejections import Reason
from .availability import Availability

__all__ = ["RecordedAvailability", "RecordedDelays", "VisitRecord"]

_NEVER = 1e9  # seconds: duration of a visit that had not ended at the end of the record


class VisitRecord(NamedTuple):
    """A visit handed out at `start`; `end` is None if it had not ended."""

    start: float
    end: float | None
    lost: bool = False
    reason: str = ""  # code of `Reason`, if it was rejected


class RecordedDelays:
    """The delay of a record: the duration of each visit, and which visits were lost."""

    def __init__(self, visits: Mapping[tuple[int, int], VisitRecord]):
        self._visits = visits

    def __call__(self, client: int, visit: int, /) -> float:
        record = self._visits.get((client, visit))
        if record is None:
            raise DamagedFile(f"here client {client} is handed its visit {visit}; in the record it never was")
        return _NEVER if record.end is None else record.end - record.start

    def lost(self, client: int, visit: int) -> bool:
        return self._visits[client, visit].lost

    def rejection(self, client: int, visit: int) -> Reason | None:
        """Return why a visit was rejected, None if it was not."""
        reason = self._visits[client, visit].reason
        return Reason(reason) if reason else None


class RecordedAvailability(Availability):
    """The availability of a record: no client at first, then the recorded joins and leaves."""

    def __init__(self, n_clients: int, changes: Sequence[tuple[float, int, bool]]):
        super().__init__({})
        self._n, self._changes = n_clients, changes

    def until(self, client: int, time: float) -> float:  # noqa: ARG002 - the record itself says what was lost
        return inf

    @property
    def absent_at_start(self) -> list[int]:
        return list(range(self._n))

    def changes(self) -> Iterator[tuple[float, int, bool]]:
        yield from self._changes
