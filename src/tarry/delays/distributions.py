"""Delays from textbook distributions, from bandwidths, and written out by hand.

A random duration is Q(u), Q the distribution's quantile function and u ∈ (0, 1) drawn from the key of
(seed, client, visit). Defaults have a mean of 100 s, so that the shapes can be compared.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from ..core.errors import BadInput
from ..core.rng import Stream, generator, key, uniform, visit_keys
from .base import (
    LONGEST,
    SHORTEST,
    ClientPopulation,
    Delay,
    DelayFactory,
    assign_profiles,
    delays,
    raise_problems,
    range_errors,
)
from .measured import number, table

__all__ = [
    "Per",
    "bandwidth",
    "constant",
    "exponential",
    "half_normal",
    "lognormal",
    "normal",
    "pareto",
    "scripted",
    "uniform_between",
]

_inverse_normal = NormalDist().inv_cdf
_MOST_SPREAD = 10.0  # at this spread a third of the clients differ from the typical one by more than e^10


Per = Annotated[Literal["visit", "client"], "a draw for every visit, or one for each client, for all its visits"]


def _drawn_per_visit(quantile: Callable[[float], float], per: Literal["visit", "client"] = "visit") -> DelayFactory:
    """Return a delay model in which every visit draws from one distribution, or takes as long as the client's first."""

    def build(population: ClientPopulation) -> Delay:
        visit_key = visit_keys(population.seed, Stream.DELAY)

        def delay(client: int, visit: int, /) -> float:
            return quantile(uniform(visit_key(client, visit if per == "visit" else 0)))

        return delay

    return build


def _factors(population: ClientPopulation, spread: float) -> npt.NDArray[np.float64]:
    """exp(spread · z) for each client, z standard normal: how much slower than the typical client it is."""
    # not key(seed, FLEET, 0), which `assign_profiles` uses: a client's speed must not follow from its measured line
    return np.exp(spread * generator(key(population.seed, Stream.FLEET, 1)).standard_normal(population.n_clients))


@delays.register("constant")
def constant(*, seconds: Annotated[float, "how long every visit takes (s)"] = 10.0) -> DelayFactory:
    """Every visit takes the same time."""
    raise_problems(range_errors(SHORTEST, LONGEST, seconds=seconds))

    def build(_population: ClientPopulation) -> Delay:
        def delay(_client: int, _visit: int, /) -> float:
            return seconds

        return delay

    return build


@delays.register("normal")
def normal(
    *,
    mean: Annotated[float, "mean of a typical client (s)"] = 100.0,
    sd: Annotated[float, "standard deviation of a typical client (s)"] = 30.0,
    spread: Annotated[float, "how much clients differ: sd of the logarithm of their means"] = 0.0,
) -> DelayFactory:
    """Normal around each client's own mean; a draw ≤ 0 becomes the mean.

    Client c has the mean m_c = mean · exp(spread · z_c) and the standard deviation sd · exp(spread · z_c).
    """
    raise_problems(
        range_errors(SHORTEST, LONGEST, mean=mean)
        + range_errors(0, LONGEST, sd=sd)
        + range_errors(0, _MOST_SPREAD, spread=spread)
    )

    def typical(u: float) -> float:
        seconds = mean + sd * _inverse_normal(u)
        return seconds if seconds > 0 else mean

    if spread == 0:
        return _drawn_per_visit(typical)

    def build(population: ClientPopulation) -> Delay:
        visit_key = visit_keys(population.seed, Stream.DELAY)
        factors = array("d", _factors(population, spread).tobytes())

        def delay(client: int, visit: int, /) -> float:
            return factors[client] * typical(uniform(visit_key(client, visit)))

        return delay

    return build


@delays.register("lognormal")
def lognormal(
    *,
    mean: Annotated[float, "arithmetic mean of the durations (s)"] = 100.0,
    sd: Annotated[float, "standard deviation of the durations (s)"] = 100.0,
    per: Per = "visit",
) -> DelayFactory:
    """Lognormal with a given arithmetic mean and standard deviation.

    σ² = ln(sd² / mean² + 1), μ = ln(mean) − σ² / 2, as in Appendix D.4 of the OrthoFL paper.
    """
    raise_problems(range_errors(SHORTEST, LONGEST, mean=mean) + range_errors(0, LONGEST, sd=sd))
    variance = math.log1p((sd / mean) ** 2)
    mu, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
    return _drawn_per_visit(lambda u: math.exp(mu + sigma * _inverse_normal(u)), per)


@delays.register("half-normal")
def half_normal(*, mean: Annotated[float, "mean of the durations (s)"] = 100.0, per: Per = "visit") -> DelayFactory:
    """The absolute value of a centered normal number: most visits short, few long.

    |N(0, s²)| has the mean s · √(2/π), so s = mean · √(π/2); its standard deviation is mean · √(π/2 − 1).
    """
    raise_problems(range_errors(SHORTEST, LONGEST, mean=mean))
    scale = mean * math.sqrt(math.pi / 2)
    return _drawn_per_visit(lambda u: -scale * _inverse_normal((1 - u) / 2), per)


@delays.register("uniform")
def uniform_between(
    *,
    low: Annotated[float, "shortest visit (s)"] = 50.0,
    high: Annotated[float, "longest visit (s)"] = 150.0,
    per: Per = "visit",
) -> DelayFactory:
    """Any duration between two bounds, all alike."""
    problems = range_errors(0, LONGEST, low=low) + range_errors(SHORTEST, LONGEST, high=high)
    if not problems and low > high:
        problems = [f"--delay.low {low}: must not be above --delay.high {high}"]
    raise_problems(problems)
    return _drawn_per_visit(lambda u: low + (high - low) * u, per)


@delays.register("exponential")
def exponential(*, mean: Annotated[float, "mean of the durations (s)"] = 100.0) -> DelayFactory:
    """Exponential: how long a visit still takes does not depend on how long it has taken."""
    raise_problems(range_errors(SHORTEST, LONGEST, mean=mean))
    return _drawn_per_visit(lambda u: -mean * math.log(u))


@delays.register("pareto")
def pareto(
    *,
    minimum: Annotated[float, "shortest visit (s)"] = 50.0,
    shape: Annotated[float, "tail exponent: at 1 and below the mean is infinite, at 2 and below the variance"] = 2.0,
) -> DelayFactory:
    """Pareto: P(longer than t) = (minimum / t)^shape, a tail that no average tames."""
    raise_problems(range_errors(SHORTEST, LONGEST, minimum=minimum) + range_errors(0.1, LONGEST, shape=shape))
    return _drawn_per_visit(lambda u: minimum * u ** (-1 / shape))


@delays.register("bandwidth")
def bandwidth(
    *,
    seconds_per_sample: Annotated[float, "computing time an example and pass (s)"] = 0.01,
    down_mbps: Annotated[float, "speed from the server to a client (Mbit/s)"] = 20.0,
    up_mbps: Annotated[float, "speed from a client to the server (Mbit/s)"] = 5.0,
    spread: Annotated[float, "how much clients differ: sd of the logarithm of their computing time"] = 0.0,
    speeds: Annotated[str | None, "CSV with a column mean_kbps: each client gets a line, for both ways"] = None,
) -> DelayFactory:
    """Computing time by the number of examples, transfer time by the model's size; the same at every visit.

    seconds_per_sample · samples · epochs · exp(spread · z_c) + 8 · model_bytes · (1 / down + 1 / up).
    A file of measured speeds replaces down and up.
    """
    raise_problems(
        range_errors(SHORTEST, LONGEST, seconds_per_sample=seconds_per_sample, down_mbps=down_mbps, up_mbps=up_mbps)
        + range_errors(0, _MOST_SPREAD, spread=spread)
    )
    measured = None if speeds is None else _read_kbps(speeds)

    def build(population: ClientPopulation) -> Delay:
        work = np.asarray(population.samples, np.float64) * (population.epochs * seconds_per_sample)
        bits = 8.0 * population.model_bytes
        transfer: npt.NDArray[np.float64] | float
        if measured is None:
            transfer = bits / (down_mbps * 1e6) + bits / (up_mbps * 1e6)
        else:
            transfer = 2 * bits / (measured[np.asarray(assign_profiles(population, len(measured)))] * 1e3)
        seconds = array("d", (work * _factors(population, spread) + transfer).tobytes())

        def delay(client: int, _visit: int, /) -> float:
            return seconds[client]

        return delay

    return build


def _read_kbps(path: str) -> npt.NDArray[np.float64]:
    flag = f"--delay.speeds {path}"
    kbps = []
    for where, (text,) in table(path, flag, {"mean_kbps": flag}):
        kbps.append(number(where, text))
        if not SHORTEST <= kbps[-1] <= LONGEST:
            raise BadInput(f"{where}: mean_kbps {text}: must be from {SHORTEST:g} to {LONGEST:g}")
    return np.array(kbps)


@delays.register("scripted")
def scripted(
    durations: Annotated[
        Sequence[float | Sequence[float]], "one entry a client: seconds, or a list of them (TOML, Python)"
    ],
    end: Annotated[
        Literal["repeat", "leave"], "after the last of a list: from its first again, or gone for good"
    ] = "repeat",
) -> DelayFactory:
    """Durations written out: one entry a client, a number (every visit) or the durations of its visits in turn.

    After the last of a list comes the first again (`repeat`), or the client leaves for good (`leave`).
    """
    try:
        script: list[list[float]] = [np.atleast_1d(np.asarray(entry, np.float64)).tolist() for entry in durations]
    except (TypeError, ValueError) as e:
        raise BadInput(f"--delay.durations {list(durations)}: seconds must be numbers ({e})") from e
    endless = [end == "repeat" or np.ndim(entry) == 0 for entry in durations]
    problems = [
        f"scripted delay of client {client}, visit {visit}: {seconds}: must be finite and above 0"
        for client, entry in enumerate(script)
        for visit, seconds in enumerate(entry)
        if not 0 < seconds < math.inf
    ]
    if end not in ("repeat", "leave"):
        problems.append(f"scripted delay, end {end!r}: must be 'repeat' or 'leave'")
    if end == "repeat":
        problems += [
            f"scripted delay of client {c}: []: needs a duration to repeat" for c, e in enumerate(script) if not e
        ]
    raise_problems(problems)

    def build(population: ClientPopulation) -> Delay:
        if len(script) != population.n_clients:
            raise BadInput(
                f"scripted delay: {len(script)} entries for {population.n_clients} clients: must be one a client"
            )

        def delay(client: int, visit: int, /) -> float | None:
            entry = script[client]
            if visit >= len(entry) and not endless[client]:
                return None
            return entry[visit % len(entry)]

        return delay

    return build
