"""Metrics of numbers. Of several outputs an example, each is scored; the metric is their mean, as in scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..core.metric import Metric
from .forms import number_rows
from .registry import metrics

__all__ = ["Moments", "rmse"]


class Moments:
    """Sums over examples of each output: errors, and squares of targets about their mean."""

    def __init__(self, name: str, of: Callable[[Moments], Tensor]):
        self._name, self._of = name, of
        self.n = 0
        self.absolute = self.square = self.mean = self.spread = torch.zeros(1, dtype=torch.float64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        rows, wanted = (t.cpu() for t in number_rows(self._name, outputs, targets))
        if not len(rows):
            return
        errors, mean, n = rows - wanted, wanted.mean(0), len(rows)
        total, shift = self.n + n, mean - self.mean
        self.absolute = self.absolute + errors.abs().sum(0)
        self.square = self.square + errors.square().sum(0)
        self.spread = self.spread + (wanted - mean).square().sum(0) + shift.square() * (self.n * n / total)
        self.mean = self.mean + shift * (n / total)
        self.n = total

    def value(self) -> float:
        return float(self._of(self).mean())


def _mae(sums: Moments) -> Tensor:
    return sums.absolute / sums.n


def _rmse(sums: Moments) -> Tensor:
    return (sums.square / sums.n).sqrt()


def _r2(sums: Moments) -> Tensor:
    share = 1 - sums.square / sums.spread.clamp_min(torch.finfo(torch.float64).tiny)
    return torch.where(sums.spread > 0, share, (sums.square == 0).double())  # constant targets: as scikit-learn


@metrics.register("mae")
def mae() -> Metric:
    """Mean absolute error."""
    return Metric("mae", streaming=partial(Moments, "mae", _mae), higher_is_better=False, best=0.0)


@metrics.register("rmse")
def rmse() -> Metric:
    """Root of the mean squared error. This is the metric of tasks whose targets are numbers by default."""
    return Metric("rmse", streaming=partial(Moments, "rmse", _rmse), higher_is_better=False, best=0.0)


@metrics.register("r2")
def r2() -> Metric:
    """R², the share of the targets' variance that the outputs explain; 0 is what their mean explains."""
    return Metric("r2", streaming=partial(Moments, "r2", _r2), best=1.0)
