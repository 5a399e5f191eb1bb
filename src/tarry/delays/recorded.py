"""A recorded course of events on the virtual clock: who was handed work, came back, was lost, came and went, and when.

A deployment writes its course down. With these in the place of delays and presence, a simulator makes the same calls of
the server, in the same order, at the same times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from ..core.errors import Damaged
from .availability import Availability

__all__ = ["RecordedAvailability", "RecordedDelays", "VisitRecord"]

_NEVER = 1e9  # seconds: of a visit that had not ended when the record did


class VisitRecord(NamedTuple):
    """How a visit went: handed out at `start`; `end` None: it had not ended."""

    start: float
    end: float | None
    lost: bool = False


class RecordedDelays:
    """The delay of a record: how long each visit took, and which were lost."""

    def __init__(self, visits: Mapping[tuple[int, int], VisitRecord]):
        self._visits = visits

    def __call__(self, client: int, visit: int, /) -> float:
        went = self._visits.get((client, visit))
        if went is None:
            raise Damaged(f"here client {client} is handed its visit {visit}; in the record it never was")
        return _NEVER if went.end is None else went.end - went.start

    def lost(self, client: int, visit: int) -> bool:
        return self._visits[client, visit].lost


class RecordedAvailability(Availability):
    """The presence of a record: nobody is there at first, and changes come as they were written down."""

    def __init__(self, n_clients: int, changes: Sequence[tuple[float, int, bool]]):
        super().__init__({})
        self._n, self._changes = n_clients, changes

    def until(self, client: int, time: float) -> float:  # noqa: ARG002 - what was lost is in the record itself
        return inf

    @property
    def absent_at_start(self) -> list[int]:
        return list(range(self._n))

    def changes(self) -> Iterator[tuple[float, int, bool]]:
        yield from self._changes
