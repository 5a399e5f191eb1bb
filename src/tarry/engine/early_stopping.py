"""Early stopping: the best weights by the validation score, and the end of a run whose score no longer improves."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["BestScore", "EarlyStopping"]


class BestScore(NamedTuple):
    """The best evaluation so far: its time, the accepted updates until then, and its validation score."""

    time: float
    updates: int
    accuracy: float | None
    loss: float | None


class EarlyStopping:
    """Stop after `patience` evaluations in a row of new weights whose score is not better than the best before.

    The score is the accuracy, which is better if it is higher, or else the loss, which is better if it is lower. A
    score that is no number is never better.
    """

    def __init__(self, patience: int, has_accuracy: bool):
        self.patience, self._has_accuracy = patience, has_accuracy
        self.best: BestScore | None = None
        self.weights: Tensor | None = None  # those of the best score
        self.waited = 0  # evaluations since the best one

    def observe(self, score: BestScore, weights: Tensor) -> bool:
        """Record an evaluation of new weights. Return whether the run is to stop."""
        if self._value(score) > (-inf if self.best is None else self._value(self.best)) or self.best is None:
            self.best, self.weights, self.waited = score, weights.detach().clone(), 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def _value(self, score: BestScore) -> float:
        """Return a number that is larger if the score is better."""
        value = score.accuracy if self._has_accuracy else score.loss
        if value is None or isnan(value):
            return -inf
        return value if self._has_accuracy else -value

    def save(self) -> dict[str, Any]:
        """Return the state as a plain record."""
        best = None if self.best is None else list(self.best)
        return {"best": best, "weights": self.weights, "waited": self.waited}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue from a saved record."""
        self.best = None if saved["best"] is None else BestScore(*saved["best"])
        self.weights, self.waited = saved["weights"], saved["waited"]
