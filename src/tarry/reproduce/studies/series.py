"""Series over server rounds, as AsyncManifold draws them: smoothed, then relative to the best and the worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["confidence", "line", "mean_of", "relative", "short", "smooth", "thirds"]

Series = npt.NDArray[np.float64]


def smooth(values: Sequence[float] | Series, sigma: float, truncate: float = 2.0) -> Series:
    """Convolution with a Gaussian of σ that is cut off after `truncate` σ; at the ends the series is mirrored."""
    reach = int(truncate * sigma + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2) if reach else np.ones(1)
    wide = np.pad(np.asarray(values, np.float64), reach, mode="symmetric")
    return np.convolve(wide, kernel / kernel.sum(), mode="valid")


def relative(series: Mapping[str, Series]) -> dict[str, Series]:
    """(x − best)/(worst − best) at every round: 0 is the lowest of all, 1 the highest; 0 where all are the same."""
    rows = np.stack(list(series.values()))
    low, spread = rows.min(0), np.ptp(rows, axis=0)
    scaled = np.divide(rows - low, spread, out=np.zeros_like(rows), where=spread > 0)
    return dict(zip(series, scaled, strict=True))


def mean_of(many: Sequence[Mapping[str, Series]]) -> dict[str, Series]:
    """The mean of several such tables, name by name; of unequal lengths, what all have."""
    n = min(len(next(iter(table.values()))) for table in many)
    return {name: np.mean([table[name][:n] for table in many], axis=0) for name in many[0]}


def thirds(values: Series) -> tuple[float, float]:
    """The means of the first and the last third."""
    n = max(1, len(values) // 3)
    return float(values[:n].mean()), float(values[-n:].mean())


def line(
    x: Sequence[float] | Series, y: Sequence[float] | Series, sd: Sequence[float] | None = None, points: int = 60
) -> dict[str, Any]:
    """A line of at most so many points."""
    at = np.unique(np.linspace(0, len(x) - 1, min(points, len(x))).round().astype(int))
    made = {"x": [short(x[i]) for i in at], "y": [short(y[i]) for i in at]}
    return made if sd is None else {**made, "sd": [short(sd[i]) for i in at]}


def short(x: float) -> float:
    """Five digits: what a picture shows."""
    return float(f"{float(x):.5g}")


def confidence(values: Sequence[float], level: float = 0.99) -> tuple[float, float]:
    """The mean, and half the width of its Gaussian confidence interval; of one value 0."""
    spread = stdev(values) if len(values) > 1 else 0.0
    return fmean(values), NormalDist().inv_cdf((1 + level) / 2) * spread / len(values) ** 0.5
