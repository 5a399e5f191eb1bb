"""The delays of the papers' experiments.

orthofl-rpi …      nine Raspberry Pi profiles, and the distributions derived from them (OrthoFL, 5.1 and App. D.4)
fedecho-…, fadas   short, medium and long clients (FedEcho, Table 1)
fedogd-l1 … l3     groups that answer every r, 3r and 5r (Fed-OGD, Sec. IV-A)
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from ..core.rng import Stream, generator, key, permutation, uniform, visit_keys
from ..core.rng import normal as standard_normal
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
from .distributions import Per, half_normal, lognormal, uniform_between

__all__ = [
    "PROFILES",
    "Groups",
    "fadas",
    "fedecho_large",
    "fedecho_mild",
    "fedogd_l1",
    "fedogd_l2",
    "fedogd_l3",
    "orthofl_rpi",
    "orthofl_rpi_half_normal",
    "orthofl_rpi_lognormal",
    "orthofl_rpi_uniform",
    "rpi_moments",
    "rpi_percentile",
]

_ORTHOFL = "Orthogonal Calibration for Asynchronous Federated Learning"
_FEDECHO = "Stragglers Can Contribute More: Uncertainty-Aware Distillation for Asynchronous Federated Learning"
_FADAS = "FADAS: Towards Federated Adaptive Asynchronous Optimization"
_FEDOGD = "Fed-OGD: Mitigating Straggler Effects in Federated Learning via Orthogonal Gradient Descent"

#: (mean, standard deviation) of a round in seconds, of nine Raspberry Pis in homes: the authors' code
PROFILES = (
    (96.0, 136.0),
    (904.0, 222.0),
    (360.0, 103.0),
    (277.0, 187.0),
    (150.0, 210.0),
    (161.0, 194.0),
    (177.0, 210.0),
    (106.0, 33.0),
    (386.0, 112.0),
)

#: Table 1 in seconds (the paper's unit is 10 s): from … to, of short, medium and long clients
_TABLE_1 = {
    "large": ((10.0, 20.0), (30.0, 50.0), (500.0, 800.0)),
    "mild": ((10.0, 20.0), (30.0, 50.0), (100.0, 200.0)),
}


@delays.register("orthofl-rpi", paper=_ORTHOFL)
def orthofl_rpi() -> DelayFactory:
    """Nine Raspberry Pi profiles: every visit is Normal(mean, sd) of the client's profile, and ≤ 0 becomes the mean.

    Profiles are drawn without replacement while there are at most nine clients, else with.
    """

    def build(population: ClientPopulation) -> Delay:
        given = assign_profiles(population, len(PROFILES))
        visit_key = visit_keys(population.seed, Stream.DELAY)

        def delay(client: int, visit: int, /) -> float:
            mean, sd = PROFILES[given[client]]
            seconds = mean + sd * standard_normal(visit_key(client, visit))
            return seconds if seconds > 0 else mean

        return delay

    return build


def rpi_moments() -> tuple[float, float]:
    """μ_R and σ_R: mean and standard deviation over the rounds of all nine profiles, each as often as the others.

    With X = Z where Z > 0 and m elsewhere, Z ~ N(m, s²), a = m/s, φ and Φ of the standard normal:
    E X = m + s φ(a) and E X² = m² + s² Φ(a) + m s φ(a).
    """
    normal = NormalDist()
    first = fmean(m + s * normal.pdf(m / s) for m, s in PROFILES)
    second = fmean(m * m + s * s * normal.cdf(m / s) + m * s * normal.pdf(m / s) for m, s in PROFILES)
    return first, math.sqrt(second - first * first)


def rpi_percentile(percent: float) -> float:
    """The shortest duration that `percent` of the rounds of all nine profiles do not exceed, by bisection."""
    normal = NormalDist()

    def share_up_to(x: float) -> float:
        return fmean(
            normal.cdf((x - m) / s) - (normal.cdf(-m / s) if x < m else 0.0)  # what was ≤ 0 lies at m
            for m, s in PROFILES
        )

    low, high = 0.0, max(m + 10 * s for m, s in PROFILES)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if share_up_to(middle) >= percent / 100 else (middle, high)
    return high


@delays.register("orthofl-rpi-lognormal", paper=_ORTHOFL)
def orthofl_rpi_lognormal(*, per: Per = "visit") -> DelayFactory:
    """Lognormal with the mean and standard deviation of the nine Raspberry Pi profiles' rounds (App. D.4).

    μ_R = 318.11 s and σ_R = 262.69 s give μ = 5.5024 and σ = 0.7211 of the logarithm. "Sampled for each client" is
    read as one draw for every visit; `per=client` draws once, so that some clients are slow for good.
    """
    mean, sd = rpi_moments()
    return lognormal(mean=mean, sd=sd, per=per)


@delays.register("orthofl-rpi-half-normal", paper=_ORTHOFL)
def orthofl_rpi_half_normal(*, per: Per = "visit") -> DelayFactory:
    """Half-normal with the mean of the nine Raspberry Pi profiles' rounds (App. D.4).

    μ_R = 318.11 s gives the scale 398.69 s; a half-normal has no second parameter, so σ_R (262.69 s) becomes 240.34 s.
    """
    mean, _ = rpi_moments()
    return half_normal(mean=mean, per=per)


@delays.register("orthofl-rpi-uniform", paper=_ORTHOFL)
def orthofl_rpi_uniform(*, per: Per = "visit") -> DelayFactory:
    """Uniform from the 5th to the 95th percentile of the nine Raspberry Pi profiles' rounds (App. D.4).

    From 50.02 s to 932.19 s.
    """
    return uniform_between(low=rpi_percentile(5), high=rpi_percentile(95), per=per)


def _by_class(population: ClientPopulation, classes: bytes, severity: str) -> Delay:
    """Every visit is uniform between the bounds of its client's class in Table 1."""
    bounds = _TABLE_1[severity]
    visit_key = visit_keys(population.seed, Stream.DELAY)

    def delay(client: int, visit: int, /) -> float:
        low, high = bounds[classes[client]]
        return low + (high - low) * uniform(visit_key(client, visit))

    return delay


def _by_samples(population: ClientPopulation, gamma: float) -> bytes:
    """Short (0), medium (1) or long (2) for each client: the rule of FedEcho's delays that the paper leaves open.

    Score = r + γ u, where r ∈ (0, 1) is the client's mid-rank by number of examples (as many examples, the same rank)
    and u ∈ (0, 1) is drawn once. The highest ⌊n/10⌋ scores are long, the next ⌊n/3⌋ medium, the rest short. γ = 0
    goes by rank alone (ties by u), a large γ by chance alone.
    """
    n = population.n_clients
    _, inverse, counts = np.unique(np.asarray(population.samples), return_inverse=True, return_counts=True)
    rank = ((np.cumsum(counts) - counts / 2) / n)[inverse]
    u = generator(key(population.seed, Stream.FLEET)).random(n)
    slowest_first = np.lexsort((u, rank + gamma * u))[::-1]
    classes: npt.NDArray[np.uint8] = np.zeros(n, np.uint8)
    classes[slowest_first[: n // 10]] = 2
    classes[slowest_first[n // 10 : n // 10 + n // 3]] = 1
    return classes.tobytes()


Gamma = Annotated[float, "how little a client's class depends on its number of examples: 0 = wholly, large = by chance"]


def _fedecho(gamma: float, severity: str) -> DelayFactory:
    raise_problems(range_errors(0, 1e9, gamma=gamma))
    return lambda population: _by_class(population, _by_samples(population, gamma), severity)


@delays.register("fedecho-large", paper=_FEDECHO)
def fedecho_large(*, gamma: Gamma = 1.0) -> DelayFactory:
    """Large delay of Table 1: short U(10, 20) s, medium U(30, 50) s, long U(500, 800) s, redrawn at each visit.

    Score = r + γ u (r: mid-rank by number of examples in (0, 1), u: uniform, drawn once) puts a client for good into
    long (the highest tenth at most), medium (the next third) or short. The rule is ours; the paper only says that it
    depends on the examples, more so for a smaller γ.
    """
    return _fedecho(gamma, "large")


@delays.register("fedecho-mild", paper=_FEDECHO)
def fedecho_mild(*, gamma: Gamma = 1.0) -> DelayFactory:
    """Mild delay of Table 1: short U(10, 20) s, medium U(30, 50) s, long U(100, 200) s, redrawn at each visit.

    Clients are put into the three classes as in `fedecho-large`.
    """
    return _fedecho(gamma, "mild")


@delays.register("fadas", paper=_FADAS)
def fadas(
    *,
    gamma: Annotated[float, "how alike clients are: small = classes by 3 : 2 : 1, large = all short"] = 1.0,
    severity: Annotated[Literal["large", "mild"], "long clients take 500 to 800 s, or 100 to 200 s"] = "large",
) -> DelayFactory:
    """Class of a client = the largest part of Dir(3γ, 2γ, γ) over short, medium, long; durations as in fedecho-…"""
    raise_problems(range_errors(1e-9, 1e9, gamma=gamma))

    def build(population: ClientPopulation) -> Delay:
        parts = generator(key(population.seed, Stream.FLEET)).dirichlet(
            (3 * gamma, 2 * gamma, gamma), population.n_clients
        )
        return _by_class(population, parts.argmax(1).astype(np.uint8).tobytes(), severity)

    return build


class Groups:
    """Three groups of clients that answer every r, 3r and 5r; now and then a client is dealt a new group.

    A client's group at visit v was dealt at its latest visit ≤ v with a change, so it is found by walking back from v:
    1/change steps on average, and a single one for visits asked in turn, because the last answer is remembered.
    """

    def __init__(self, population: ClientPopulation, shares: Sequence[int], *, r: float, change: float):
        assert sum(shares) == 100
        self._seconds = (r, 3 * r, 5 * r)
        self._change = change
        self._bounds = (shares[0] / 100, (shares[0] + shares[1]) / 100)
        self._first = _exact_groups(population, shares)
        self._visit_key = visit_keys(population.seed, Stream.FLEET)
        self._last_visit = array("q", bytes(8 * population.n_clients if change else 0))
        self._last_group = bytearray(self._first if change else b"")

    def __call__(self, client: int, visit: int, /) -> float:
        return self._seconds[self.group(client, visit)]

    def group(self, client: int, visit: int) -> int:
        """0 answers every r, 1 every 3r, 2 every 5r."""
        if not self._change:
            return self._first[client]
        known, group = self._last_visit[client], self._last_group[client]
        if visit < known:
            known, group = 0, self._first[client]
        for v in range(visit, known, -1):
            u = uniform(self._visit_key(client, v))
            if u < self._change:
                group = bisect_right(self._bounds, u / self._change)  # u / change is uniform again, given u < change
                break
        if visit > self._last_visit[client]:
            self._last_visit[client], self._last_group[client] = visit, group
        return group


def _exact_groups(population: ClientPopulation, shares: Sequence[int]) -> bytes:
    """A group for each client in a random order, as many in each as the shares (%) say, by largest remainder."""
    counts = [population.n_clients * share // 100 for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda g: -(population.n_clients * shares[g] % 100))
    for group in by_remainder[: population.n_clients - sum(counts)]:
        counts[group] += 1
    groups: npt.NDArray[np.uint8] = np.empty(population.n_clients, np.uint8)
    groups[permutation(key(population.seed, Stream.FLEET), population.n_clients)] = np.repeat(
        np.arange(len(shares)), counts
    )
    return groups.tobytes()


R = Annotated[float, "how long the fastest group takes (s)"]
GroupChange = Annotated[float, "chance that a client is dealt a new group at a visit (by the same shares)"]


def _fedogd(shares: Sequence[int], r: float, change: float) -> DelayFactory:
    raise_problems(range_errors(SHORTEST, LONGEST, r=r) + range_errors(0, 1, change=change))
    return lambda population: Groups(population, shares, r=r, change=change)


@delays.register("fedogd-l1", paper=_FEDOGD)
def fedogd_l1(*, r: R = 1.0, change: GroupChange = 0.0) -> DelayFactory:
    """L1: 60 % of the clients answer every r, 20 % every 3r, 20 % every 5r."""
    return _fedogd((60, 20, 20), r, change)


@delays.register("fedogd-l2", paper=_FEDOGD)
def fedogd_l2(*, r: R = 1.0, change: GroupChange = 0.0) -> DelayFactory:
    """L2: 40 % of the clients answer every r, 30 % every 3r, 30 % every 5r."""
    return _fedogd((40, 30, 30), r, change)


@delays.register("fedogd-l3", paper=_FEDOGD)
def fedogd_l3(*, r: R = 1.0, change: GroupChange = 0.0) -> DelayFactory:
    """L3: 20 % of the clients answer every r, 40 % every 3r, 40 % every 5r."""
    return _fedogd((20, 40, 40), r, change)
