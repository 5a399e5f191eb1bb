"""Dispatch parts: which idle clients get work. (The default: random ones, up to the concurrency of the run.)"""

from __future__ import annotations

from ..core.idle_clients import Roster
from ..core.method import Now
from ..core.parts import Dispatch

__all__ = ["barrier"]


def barrier() -> Dispatch:
    """Rounds: a new random cohort, as large as the concurrency, once no client is training."""

    def apply(roster: Roster, state: None, now: Now) -> tuple[list[int], None]:
        return ([] if now.in_flight else roster.draw(roster.limit, now)), state

    return Dispatch(apply)
