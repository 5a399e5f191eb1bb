"""Scoring of a model's outputs: all metrics over all chunks of a set, and which metrics a task has by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.metric import LOSS, Accumulator, Metric
from .classification import accuracy, f1
from .forms import is_classes
from .registry import metrics
from .regression import rmse

__all__ = ["Scoring", "default_metrics", "is_mean_over_examples"]


class Scoring:
    """The metrics of one set of examples, which comes in chunks. The mean of the task's loss is always among them."""

    def __init__(self, wanted: Sequence[Metric]):
        self._accumulators = [(m, _accumulator(m)) for m in wanted if m.name != LOSS.name]

    def update(self, outputs: Any, targets: Tensor) -> None:
        """Take a chunk into account."""
        for metric, accumulator in self._accumulators:
            if not isinstance(outputs, Tensor):
                raise BadInput(
                    f"--metric {metric.name}: the model returns {type(outputs).__name__}, and metrics are of"
                    " tensors; use --metric loss"
                )
            accumulator.update(outputs, targets)

    def values(self) -> dict[str, float]:
        """Return the value of each metric by name, without the loss."""
        found: dict[str, float] = {}
        for metric, accumulator in self._accumulators:
            value = accumulator.value()
            found |= value if isinstance(value, Mapping) else {metric.name: metric.check_value(value)}
        return found


class _AllExamples:
    """All outputs and targets of a set, for a function that wants them at once."""

    def __init__(self, metric: Metric):
        self._metric = metric
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self._outputs.append(outputs.detach().cpu())
        self._targets.append(targets.cpu())

    def value(self) -> Any:
        assert self._metric.function is not None
        return self._metric.function(torch.cat(self._outputs), torch.cat(self._targets))


def _accumulator(metric: Metric) -> Accumulator:
    if metric.streaming is not None:
        return metric.streaming()
    if metric.function is not None:
        return _AllExamples(metric)
    if metric.name in metrics:
        return _accumulator(metrics[metric.name]())
    raise BadInput(f"--metric {metric.name}: it has neither a function nor an accumulator; give it one")


def is_mean_over_examples(metric: Metric) -> bool:
    """Return whether a metric is a mean over examples, so that one over classes follows from those of each class."""
    return metric.streaming is not None and hasattr(metric.streaming(), "per_example")


@metrics.register("loss")
def loss() -> Metric:
    """Mean of the task's loss over the test set. It is recorded in any case; as the first metric it is the score."""
    return LOSS


def default_metrics(outputs: Any, targets: Tensor) -> tuple[Metric, ...]:
    """Return the metrics of a task that names none, from the outputs of some examples and all targets.

    It is accuracy for classes and for one yes-or-no answer, f1 for several, rmse for numbers, else the loss.
    """
    if not isinstance(outputs, Tensor) or not outputs.ndim or not targets.ndim:
        return (LOSS,)
    if is_classes(outputs, targets[: len(outputs)]):
        return (accuracy(),)
    some = targets[: len(outputs)]
    if not targets.is_floating_point() or some.numel() != outputs.numel():
        return (LOSS,)
    if bool(((targets == 0) | (targets == 1)).all()):
        return (accuracy() if targets.numel() == len(targets) else f1(),)
    return (rmse(),)
