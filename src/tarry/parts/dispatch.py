"""Whom to hand work to. The default refills to the concurrency asked for, from the idle clients at random."""

from __future__ import annotations

from ..core.idle_clients import Roster
from ..core.method import Now, Part, stateless

__all__ = ["barrier"]


def barrier() -> Part[Roster, list[int]]:
    """A round at a time: a fresh cohort (as many as the concurrency) once nobody is training any more."""

    def apply(roster: Roster, now: Now) -> list[int]:
        return [] if now.in_flight else roster.draw(roster.limit, now)

    return stateless(apply)
