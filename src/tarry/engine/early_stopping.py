"""Early stopping: the best weights by the validation score, and the end of a run whose score no longer improves."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan
from typing import Any

from torch import Tensor

from ..core.metric import CurvePoint, Metric

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Stop after `patience` evaluations in a row of new weights whose score is not better than the best before.

    The score is the first metric, in its direction. A score that is no number is never better.
    """

    def __init__(self, patience: int, metric: Metric):
        self.patience, self._metric = patience, metric
        self.best: CurvePoint | None = None
        self.weights: Tensor | None = None  # those of the best score
        self.waited = 0  # evaluations since the best one

    def observe(self, point: CurvePoint, weights: Tensor) -> bool:
        """Record an evaluation of new weights. Return whether the run is to stop."""
        if self.best is None or self._value(point) > self._value(self.best):
            self.best, self.weights, self.waited = point, weights.detach().clone(), 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def _value(self, point: CurvePoint) -> float:
        """Return a number that is larger if the score is better."""
        return -inf if point.score is None or isnan(point.score) else self._metric.sign * point.score

    def save(self) -> dict[str, Any]:
        """Return the state as a plain record."""
        best = None if self.best is None else self.best.to_row()
        return {"best": best, "weights": self.weights, "waited": self.waited}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue from a saved record."""
        self.best = None if saved["best"] is None else CurvePoint.from_row(saved["best"], self._metric.name)
        self.weights, self.waited = saved["weights"], saved["waited"]
