"""One-sided Wilcoxon signed-rank tests (F. Wilcoxon 1945) with Holm's correction (S. Holm 1979), as in OrthoFL 5.2.

d_i = hero − rival over pairs i = (column, seed); zeros are left out; |d_i| are ranked, ties get their mean rank
W   = Σ ranks of the positive d_i;   p = P(W' ≥ W) if all signs are equally likely, computed exactly
Holm: the i-th smallest of m p-values times m − i + 1, at least the one before, at most 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .tables import Findings

__all__ = ["SignificanceResult", "holm", "signed_rank", "tests"]

LEVEL = 0.05


@dataclass(frozen=True)
class SignificanceResult:
    """The test of one hero against one rival."""

    hero: str
    rival: str
    pairs: int
    p: float
    corrected: float

    @property
    def significant(self) -> bool:
        return self.corrected < LEVEL

    @property
    def words(self) -> str:
        least = 2.0**-self.pairs
        if self.significant:
            return f"significant at {LEVEL:.0%}"
        return "not significant" + (f" (so few pairs cannot give less than {least:.2g})" if least >= LEVEL else "")


def signed_rank(differences: Sequence[float]) -> float:
    """Return the probability of a rank sum at least as large if neither side is better."""
    there = [d for d in differences if d != 0]
    if not there:
        return 1.0
    doubled = _doubled_ranks([abs(d) for d in there])
    seen = sum(r for r, d in zip(doubled, there, strict=True) if d > 0)
    ways = [1] + [0] * sum(doubled)  # ways[s]: choices of signs whose positive (doubled) ranks sum to s
    for rank in doubled:
        for s in range(len(ways) - 1, rank - 1, -1):
            ways[s] += ways[s - rank]
    return sum(ways[seen:]) / (1 << len(there))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the ranks, so that the ranks of ties are integers."""
    return [2 * sum(w < v for w in values) + sum(w == v for w in values) + 1 for v in values]


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return the corrected p-values."""
    out, before = {}, 0.0
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        before = max(before, min(1.0, (len(p_values) - i) * p))
        out[name] = before
    return {name: out[name] for name in p_values}


def tests(found: Findings) -> list[SignificanceResult]:
    """Return a test of every hero against every rival over the columns and seeds of both, corrected for each hero."""
    experiment = found.experiment
    if experiment.test is None:
        return []
    grid = found.grids[experiment.measures[0]]
    sign = -1.0 if grid.measure.better == "low" else 1.0
    out = []
    for hero in experiment.heroes:
        differences = {}
        for rival in found.rows:
            if rival in experiment.heroes:
                continue
            pairs = [
                sign * (ours - theirs)
                for column, seeds in grid.values.get(hero, {}).items()
                if column in found.current
                for seed, ours in seeds.items()
                if ours is not None and (theirs := grid.values.get(rival, {}).get(column, {}).get(seed)) is not None
            ]
            if pairs:
                differences[rival] = pairs
        p_values = {rival: signed_rank(pairs) for rival, pairs in differences.items()}
        corrected = holm(p_values)
        out += [SignificanceResult(hero, r, len(differences[r]), p_values[r], corrected[r]) for r in differences]
    return out
