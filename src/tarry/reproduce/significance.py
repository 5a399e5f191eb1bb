"""One-sided Wilcoxon signed-rank tests with Holm's correction (report.statistics), as in OrthoFL 5.2.

A pair is a column and a seed that the hero and the rival have a value for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..report.statistics import holm, signed_rank
from .tables import Findings

__all__ = ["SignificanceResult", "tests"]

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
