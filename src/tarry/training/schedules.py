"""The registered learning-rate schedules, for clients (--lr-schedule) and for servers (--server-lr-schedule).

    t                server steps (`by=rounds`), the client's own visits (`by=visits`) or virtual seconds (`by=time`)
    t < warmup       factor = start + (1 − start) t / warmup
    afterwards       factor = f(t − warmup), with f(0) = 1:

    constant       1
    step           factor^⌊t / every⌋, or factor^(how many of `at` are reached)
    exponential    factor^t
    linear         1 − (1 − end) t / length          `end` from t = length on
    cosine         end + (1 − end) (1 + cos(π t / length)) / 2

A factor is above 0: a visit at rate 0 would learn nothing, and some methods divide by the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import cos, inf, pi
from typing import Annotated, Literal

from ..core.errors import BadInput
from ..core.registry import Registry
from ..core.schedule import RateSchedule, ScheduleInput

__all__ = ["exponential", "schedules"]

schedules: Registry[RateSchedule] = Registry("schedule", Callable)

Count = Literal["rounds", "visits", "time"]
By = Annotated[Count, "count server steps, the client's own visits, or virtual seconds"]
Warmup = Annotated[float, "how long the rate rises linearly before, in what is counted; 0: not at all"]
Start = Annotated[float, "the factor at the beginning of the warm-up"]
Length = Annotated[float, "how long the rate falls after the warm-up, in what is counted"]
End = Annotated[float, "the factor at the end, and after it"]
_COUNTS: dict[Count, Callable[[ScheduleInput], float]] = {
    "rounds": lambda at: at.version,
    "visits": lambda at: at.visit,
    "time": lambda at: at.time,
}


def _schedule(
    shape: Callable[[float], float], by: Count, warmup: float, start: float, problems: Iterable[str] = ()
) -> RateSchedule:
    """Return a schedule that warms up, and then follows a shape; raise BadInput with all problems of its numbers."""
    found = [*problems, *_wrong(f"warmup {warmup}: must be 0 or more", warmup >= 0), *_wrong_share("start", start)]
    if found:
        raise BadInput([f"--schedule.{problem}" for problem in found])
    count = _COUNTS[by]

    def factor(at: ScheduleInput) -> float:
        t = count(at)
        return start + (1 - start) * t / warmup if t < warmup else shape(t - warmup if warmup else t)

    return factor


def _wrong(problem: str, holds: bool) -> list[str]:
    return [] if holds else [problem]


def _wrong_share(name: str, value: float) -> list[str]:
    return _wrong(f"{name} {value}: must be above 0 and at most 1", 0 < value <= 1)


def _wrong_fall(length: float, end: float) -> list[str]:
    return [*_wrong(f"length {length}: must be above 0", length > 0), *_wrong_share("end", end)]


@schedules.register("constant", use="With a warm-up alone.")
def constant(*, by: By = "rounds", warmup: Warmup = 0.0, start: Start = 0.1) -> RateSchedule:
    """A constant rate, after the warm-up if there is one."""
    return _schedule(lambda _: 1.0, by, warmup, start)


@schedules.register("step", use="The classic: a tenth of the rate at a half and at three quarters of the run.")
def step(
    *,
    every: Annotated[float | None, "the distance between drops, in what is counted"] = None,
    at: Annotated[list[float] | None, "the places of the drops instead, such as [100, 150]"] = None,
    factor: Annotated[float, "what is left of the rate after a drop"] = 0.1,
    by: By = "rounds",
    warmup: Warmup = 0.0,
    start: Start = 0.1,
) -> RateSchedule:
    """A drop by a factor at regular distances, or at given places."""
    places, distance = at or [], inf if every is None else every
    counts = all(isinstance(x, int | float) and not isinstance(x, bool) and x >= 0 for x in places)
    problems = [
        *_wrong(f"every {every}: must be above 0", distance > 0),
        *_wrong(f"at {at}: must be a list of numbers that are 0 or more", counts),
        *_wrong("every: give this or --schedule.at, one of the two", (every is None) != (at is None)),
        *_wrong_share("factor", factor),
    ]

    def passed(t: float) -> float:
        return t // distance if at is None else sum(t >= place for place in places)

    return _schedule(lambda t: factor ** passed(t), by, warmup, start, problems)


@schedules.register("exponential", use="--lr-decay D is exponential:factor=D.")
def exponential(
    *,
    factor: Annotated[float, "what is left of the rate after one more of what is counted"],
    by: By = "rounds",
    warmup: Warmup = 0.0,
    start: Start = 0.1,
) -> RateSchedule:
    """A rate that is multiplied by a factor again and again."""
    return _schedule(lambda t: factor**t, by, warmup, start, _wrong_share("factor", factor))


@schedules.register("linear")
def linear(
    *, length: Length, end: End = 0.01, by: By = "rounds", warmup: Warmup = 0.0, start: Start = 0.1
) -> RateSchedule:
    """A straight line from the full rate to a share of it."""
    return _schedule(lambda t: 1 - (1 - end) * min(t / length, 1.0), by, warmup, start, _wrong_fall(length, end))


@schedules.register("cosine", paper="Loshchilov and Hutter 2017, SGDR: Stochastic Gradient Descent with Warm Restarts")
def cosine(
    *, length: Length, end: End = 0.01, by: By = "rounds", warmup: Warmup = 0.0, start: Start = 0.1
) -> RateSchedule:
    """Half a cosine from the full rate to a share of it, without restarts."""

    def shape(t: float) -> float:
        return end + (1 - end) * (1 + cos(pi * min(t / length, 1.0))) / 2

    return _schedule(shape, by, warmup, start, _wrong_fall(length, end))
