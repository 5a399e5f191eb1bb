"""Learning-rate schedules: a factor on a rate, as a pure function of what the server has counted.

    schedule(ScheduleInput(version, visit, time)) → factor       above 0 and finite

A visit's rate is --lr times the factor at its hand-out. Its ticket holds the input, so every process computes the same
rate, in a simulation and in a federation. A server step's rate is η times the factor at the step, which is of no visit.
The registered schedules are in training.schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from .errors import BadInput

__all__ = ["RateSchedule", "ScheduleInput", "ServerScheduleInput", "check_schedule", "counts_visits"]


class ScheduleInput(NamedTuple):
    """The input of a schedule: server steps, the client's own visits, and virtual time, at a hand-out.

    >>> rate = lambda at: 0.5**at.visit
    >>> rate(tarry.ScheduleInput(version=7, visit=2, time=30.0))
    0.25
    >>> result = tarry.run("asgd", "digits", clients=2, updates=3, lr_schedule=rate)
    """

    version: int = 0  # server steps made
    visit: int = 0  # visits of this client before
    time: float = 0.0  # virtual seconds


class ServerScheduleInput(ScheduleInput):
    """The input at a server step, which belongs to no visit of a client."""

    __slots__ = ()

    @property
    def visit(self) -> int:
        raise BadInput("the server has no visits of its own; use by=rounds or by=time")


RateSchedule = Callable[[ScheduleInput], float]


def check_schedule(schedule: RateSchedule, flag: str) -> RateSchedule:
    """Return the schedule with a check of its factors; errors name `flag`."""

    def checked(at: ScheduleInput) -> float:
        factor = schedule(at)
        try:
            number = float(factor)
        except (TypeError, ValueError):
            number = inf
        if not 0 < number < inf:
            raise BadInput(f"{flag}: it gives {factor!r} at {at}; wants a number above 0, which multiplies the rate")
        return number

    return checked


def counts_visits(schedule: RateSchedule) -> bool:
    """Return whether the schedule depends on the client's own visits at the beginning of a run."""
    try:
        schedule(ServerScheduleInput())
    except BadInput:
        return True
    return False
