"""Statistics of paired differences: Wilcoxon's signed-rank test, Holm's correction, bootstrap intervals, sample sizes.

d_i = ours − theirs over pairs i; zeros are left out; |d_i| are ranked, ties get their mean rank
W   = Σ ranks of the positive d_i                                                    F. Wilcoxon 1945
p   = P(W' ≥ W) if all signs are equally likely, exactly; two-sided: twice the smaller of both sides, at most 1
Holm: the i-th smallest of m p-values times m − i + 1, at least the one before, at most 1                S. Holm 1979
n   = (z_{α/2} + z_{power})² / (3 (q − 1/2)²),  q = P(d_1 + d_2 > 0)                 G. Noether 1987: size of a sample
      q = Φ(√2 mean/sd) for normal differences. It is too large for large effects: up to 100 pairs, the smallest n is
      searched whose power is enough in simulated differences
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil, log2, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..core.optional_import import optional_import

__all__ = ["Alternative", "bootstrap_interval", "holm", "least_pairs", "least_p", "pairs_needed", "signed_rank"]

#: whether ours is greater than theirs, or differs in either direction
Alternative = Literal["greater", "two-sided"]

_EXACT = 100  # pairs; the exact test takes time and memory that grow as their cube
_RESAMPLES = 10_000
_SAMPLES = 4_000  # of simulated differences
_MOST_PAIRS = 10_000  # larger samples are not named
_STANDARD = NormalDist()


def signed_rank(differences: Sequence[float], alternative: Alternative = "greater") -> float:
    """Return the probability of a rank sum at least as large if neither side is better, or at least as extreme."""
    there = [d for d in differences if d != 0]
    if not there:
        return 1.0
    if len(there) > _EXACT:
        return _approximate(there, alternative)
    greater = _tail(there)
    return greater if alternative == "greater" else min(1.0, 2 * min(greater, _tail([-d for d in there])))


def _tail(differences: Sequence[float]) -> float:
    """Return the probability that the positive ranks sum to as much as they do."""
    doubled = _doubled_ranks([abs(d) for d in differences])
    seen = sum(r for r, d in zip(doubled, differences, strict=True) if d > 0)
    ways = [1] + [0] * sum(doubled)  # ways[s]: choices of signs whose positive (doubled) ranks sum to s
    for rank in doubled:
        for s in range(len(ways) - 1, rank - 1, -1):
            ways[s] += ways[s - rank]
    return sum(ways[seen:]) / (1 << len(differences))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the ranks, so that the ranks of ties are integers."""
    return [2 * sum(w < v for w in values) + sum(w == v for w in values) + 1 for v in values]


def _approximate(differences: Sequence[float], alternative: Alternative) -> float:
    """Return the probability by the normal approximation with the correction for ties."""
    with optional_import("scipy"):
        from scipy.stats import wilcoxon
    return float(wilcoxon(differences, alternative=alternative, method="asymptotic").pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return the corrected p-values."""
    out, before = {}, 0.0
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        before = max(before, min(1.0, (len(p_values) - i) * p))
        out[name] = before
    return {name: out[name] for name in p_values}


def bootstrap_interval(differences: Sequence[float], *, coverage: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Return the interval between the outer percentiles of the mean over resamples; a function of the seed."""
    values = np.array(differences, dtype=np.float64)
    random = np.random.Generator(np.random.Philox(key=seed))
    rows = max(1, min(_RESAMPLES, 4_000_000 // len(values)))
    means = values[random.integers(len(values), size=(rows, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)


def least_p(pairs: int, alternative: Alternative) -> float:
    """Return the smallest p that so many pairs can give: 2^-n, or twice that if the test is two-sided."""
    return min(1.0, 2.0**-pairs * (2 if alternative == "two-sided" else 1))


def least_pairs(level: float, alternative: Alternative) -> int:
    """Return the smallest number of pairs that can give a p below the level."""
    pairs = max(1, ceil(-log2(level)) - 1)
    while least_p(pairs, alternative) >= level:
        pairs += 1
    return pairs


def pairs_needed(
    differences: Sequence[float], level: float, alternative: Alternative, *, power: float = 0.8
) -> int | None:
    """Return how many pairs give a p below the level with this probability, if all are normal as these are.

    None: there are fewer than three, they have no direction, or more than ten thousand would be needed.
    """
    if len(differences) < 3 or (mean := fmean(differences)) == 0 or (alternative == "greater" and mean < 0):
        return None
    least, sd = least_pairs(level, alternative), stdev(differences)
    if sd == 0:
        return least
    effect = abs(mean) / sd
    share = _STANDARD.cdf(sqrt(2) * effect)
    z = _STANDARD.inv_cdf(1 - level / (2 if alternative == "two-sided" else 1)) + _STANDARD.inv_cdf(power)
    if share == 0.5 or (bound := z**2 / (3 * (share - 0.5) ** 2)) > _MOST_PAIRS:
        return None
    if bound > _EXACT:
        return ceil(bound)
    sizes = range(least, max(least, ceil(bound)))
    return least + bisect_left(sizes, power, key=lambda n: _power(n, effect, level, alternative))


def _power(pairs: int, effect: float, level: float, alternative: Alternative) -> float:
    """Return the share of simulated samples of this effect (mean / sd) whose p is below the level."""
    values = _noise()[:, :pairs] + effect
    ranks = np.abs(values).argsort(axis=1).argsort(axis=1) + 1
    sums = np.where(values > 0, ranks, 0).sum(axis=1)
    return float((sums >= _critical_sum(pairs, level, alternative)).mean())


@cache
def _noise() -> npt.NDArray[np.float64]:
    """Return standard normal numbers, the same for every call."""
    return np.random.Generator(np.random.Philox(key=0)).standard_normal((_SAMPLES, _EXACT))


@cache
def _critical_sum(pairs: int, level: float, alternative: Alternative) -> int:
    """Return the smallest sum of positive ranks with a p below the level."""
    total = pairs * (pairs + 1) // 2
    shares = np.zeros(total + 1)
    shares[0] = 1.0
    for rank in range(1, pairs + 1):
        shares[rank:] += shares[:-rank].copy()
        shares /= 2
    tails = shares[::-1].cumsum()[::-1] * (2 if alternative == "two-sided" else 1)
    return int(np.argmax(tails < level)) if bool((tails < level).any()) else total + 1
