"""Whom to hand work to. The default refills to the concurrency asked for, from the idle clients at random."""

from __future__ import annotations

from ..core.idle_clients import Roster
from ..core.method import Now
from ..core.parts import Dispatch

__all__ = ["barrier"]


def barrier() -> Dispatch:
    """A round at a time: a fresh cohort (as many as the concurrency) once nobody is training any more."""

    def apply(roster: Roster, state: None, now: Now) -> tuple[list[int], None]:
        return ([] if now.in_flight else roster.draw(roster.limit, now)), state

    return Dispatch(apply)
