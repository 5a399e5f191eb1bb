"""The metrics of a run: those of --metric, else of the task, else what its outputs and targets call for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, isnan
from typing import Any

import torch
from torch import Tensor

from ..config.spec import Spec
from ..core.errors import BadInput
from ..core.metric import Metric, Scores
from ..core.task import Task, has_classes
from ..metrics import accuracy, default_metrics, metrics_of

__all__ = ["check_metrics", "majority_accuracy", "measures_accuracy", "metrics_in", "with_metrics"]


def with_metrics(task: Task, spec: Spec, outputs: Any) -> Task:
    """Return the task with its metrics as records; `outputs` are those of two examples, None without examples."""
    chosen = task.metrics if spec.metric is None else spec.metric
    if chosen is None and outputs is not None:
        return replace(
            task, metrics=default_metrics(outputs, task.clients[0][1] if task.test is None else task.test[1])
        )
    return replace(task, metrics=(accuracy(),) if chosen is None else metrics_of(chosen))


def metrics_in(task: Task) -> tuple[Metric, ...]:
    """Return the metrics of a task that `with_metrics` has returned."""
    found = task.metrics or ()
    assert all(isinstance(m, Metric) for m in found)
    return tuple(found)  # type: ignore[arg-type]


def measures_accuracy(task: Task) -> bool:
    """Return whether accuracy is one of a task's metrics, as it is by default."""
    return task.metrics is None or any(getattr(m, "name", m) == "accuracy" for m in task.metrics)


def majority_accuracy(task: Task) -> float | None:
    """Accuracy of always predicting the majority class; None if the task's accuracy is not measured."""
    if task.test is None or not has_classes(task.test) or not measures_accuracy(task):
        return None
    return float(torch.bincount(task.test[1].long()).max()) / len(task.test[1])


def check_metrics(evaluate: Callable[[Tensor], Scores], weights: Tensor) -> None:
    """Evaluate the first weights; raise BadInput if a metric does not fit the task or its test set."""
    scores = evaluate(weights)
    undefined = [name for name, value in scores.items() if isnan(value)]
    if undefined and isfinite(scores["loss"]):
        raise BadInput(
            f"--metric {undefined[0]}: it is not a number (NaN) for the first weights, whose loss is"
            f" {scores['loss']:.4g}; is it defined on this test set, which needs examples of two classes for auroc?"
        )
