"""Split an integer in given proportions by the largest-remainder rule (Hamilton 1792)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["apportion"]


def apportion(weights: npt.ArrayLike, total: int) -> npt.NDArray[np.int64]:
    """Return `total` split in proportion to `weights`: floors first, then one more to the largest remainders.

    The parts add up to `total` and each is within one of its exact share. Ties go to the first part.
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
