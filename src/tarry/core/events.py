"""Event: one typed record for each event of a run, which recorders write and callbacks receive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from torch import Tensor

from .one_line import one_line

__all__ = ["Event", "EventKind"]

EventKind = Literal["hand_out", "arrival", "lost", "rejected", "join", "leave", "step", "evaluate", "alarm", "restore"]


class Event(NamedTuple):
    """One event on the clock. −1 and None mean 'does not apply'.

    >>> events = []
    >>> result = tarry.run("fedasync", "digits", clients=2, delay=[3, 5], updates=2, callbacks=[events.append])
    >>> for e in events:
    ...     if e.kind == "arrival":
    ...         print(e.time, e.client, e.staleness, e.updates)
    3.0 0 0 1
    5.0 1 1 2
    """

    kind: EventKind
    time: float
    version: int  # server steps made, this event included
    updates: int  # updates accepted, this event included
    weights: Tensor  # the global weights after it; never write to them
    client: int = -1
    ticket: int = -1
    visit: int = -1
    staleness: int = -1
    stepped: bool = False  # the global weights changed
    seconds: float | None = None  # hand_out: how long the visit takes
    loss: float | None = None  # arrival: the client's mean training loss; evaluate, alarm: the test loss
    accuracy: float | None = None  # evaluate, if it is a metric of the run
    metrics: Mapping[str, float | None] | None = None  # evaluate: every metric by name, the loss among them
    notes: dict[str, Any] | None = None  # arrival, step: diagnostics, when they are asked for
    reason: str = ""  # rejected: a code of `Reason`; lost: why, in a federation

    def __repr__(self) -> str:
        return one_line(self)
