"""Synchronous rounds: a dispatch part, and the methods that differ from FedAvg in a few parts only."""

from __future__ import annotations

from ..core.idle_clients import IdleClients
from ..core.local_rule import LocalRule
from ..core.method import Method, Personalization, ServerView
from ..core.parts import ADD, Dispatch, Step
from .aggregate import Weighting, round_mean

__all__ = ["barrier", "rounds"]


def barrier() -> Dispatch:
    """Rounds: a new random cohort, as large as the concurrency, once no client is training."""

    def apply(roster: IdleClients, state: None, view: ServerView) -> tuple[list[int], None]:
        return ([] if view.in_flight else roster.draw(roster.concurrency, view)), state

    return Dispatch(apply)


def rounds(
    name: str,
    weighting: Weighting = "examples",
    *,
    local: LocalRule | None = None,
    step: Step = ADD,
    personalization: Personalization | None = None,
) -> Method:
    """Return a method whose server averages the displacements of a cohort, as FedAvg."""
    return Method(
        name,
        staleness="always 0",
        local=local,
        aggregate=round_mean(weighting),
        step=step,
        dispatch=barrier(),
        personalization=personalization,
    )
