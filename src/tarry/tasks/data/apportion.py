"""Whole numbers in given proportions: the largest-remainder rule (Hamilton 1792)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["apportion"]


def apportion(weights: npt.ArrayLike, total: int) -> npt.NDArray[np.int64]:
    """`total` cut in proportion to `weights`: floors first, what is missing to the largest remainders.

    The parts add up to `total` and each is within one of its exact share; of equal remainders the first wins.
    """
    w = np.asarray(weights, np.float64)
    if total == 0:
        return np.zeros(len(w), np.int64)
    assert total > 0
    assert (w >= 0).all()
    assert w.sum() > 0
    exact = total * (w / w.sum())
    parts: npt.NDArray[np.int64] = np.floor(exact).astype(np.int64)
    order = np.argsort(parts - exact, kind="stable")
    parts[order[: total - parts.sum()]] += 1
    return parts
