"""Dispatch parts: which idle clients get work. (The default: random ones, up to the concurrency of the run.)"""

from __future__ import annotations

from ..core.idle_clients import IdleClients
from ..core.method import ServerView
from ..core.parts import Dispatch

__all__ = ["barrier"]


def barrier() -> Dispatch:
    """Rounds: a new random cohort, as large as the concurrency, once no client is training."""

    def apply(roster: IdleClients, state: None, view: ServerView) -> tuple[list[int], None]:
        return ([] if view.in_flight else roster.draw(roster.concurrency, view)), state

    return Dispatch(apply)
