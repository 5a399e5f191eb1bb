"""Statistics over clients of the global model's scores (--client-metrics), at every evaluation.

A client's score is Σ_c (n_kc / n_k) a_c, as with --personalize: a_c is the score on the test examples of class c, and
n_kc of the client's n_k examples are of that class. The scores of classes come from the outputs of the evaluation
itself: an evaluation costs no further pass of the model, but a product with a table of clients × classes.

    client_mean            mean over clients, each counting alike
    client_worst_decile    mean over the worst tenth of the clients, one at least
    client_sd              standard deviation over clients
    client_jain            Jain's index of fairness, (Σ a_k)² / (n Σ a_k²): 1 if all scores are equal
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..core.errors import BadInput
from ..core.metric import Metric
from ..core.task import Task, has_classes
from ..metrics import is_mean_over_examples
from .personalize import class_shares, client_metric

__all__ = ["client_metrics", "statistics", "with_client_scores"]

ClientNumbers = npt.NDArray[np.float64]
_PREFIX = "client"


def statistics(scores: ClientNumbers, *, higher_is_better: bool = True) -> dict[str, float]:
    """Return mean, mean of the worst tenth, standard deviation and Jain's index of clients' scores."""
    ordered = np.sort(scores) if higher_is_better else np.sort(scores)[::-1]
    squares = float((scores**2).sum())
    return {
        f"{_PREFIX}_mean": float(scores.mean()),
        f"{_PREFIX}_worst_decile": float(ordered[: ceil(len(scores) / 10)].mean()),
        f"{_PREFIX}_sd": float(scores.std()),
        f"{_PREFIX}_jain": float(scores.sum()) ** 2 / (len(scores) * squares) if squares else 1.0,
    }


def client_metrics(task: Task) -> tuple[Metric, ...]:
    """Return the metrics that `statistics` computes, with their directions and units."""
    of = client_metric(task)
    assert of is not None
    higher, unit = of.higher_is_better, of.unit
    return (
        Metric(f"{_PREFIX}_mean", higher_is_better=higher, unit=unit),
        Metric(f"{_PREFIX}_worst_decile", higher_is_better=higher, unit=unit),
        Metric(f"{_PREFIX}_sd", higher_is_better=False, unit=unit, best=0.0),
        Metric(f"{_PREFIX}_jain", best=1.0),
    )


def with_client_scores(task: Task) -> Task:
    """Return the task whose evaluations score its clients, too; BadInput if its test examples have no classes."""
    of = client_metric(task)
    if of is None or task.test is None or not has_classes(task.test) or not is_mean_over_examples(of):
        missing = "test set" if task.test is None else "classes by which clients could be scored"
        raise BadInput(f"--client-metrics: task {task.name!r} has no {missing}; leave out --client-metrics")
    group = Metric(_PREFIX, streaming=partial(ClientScores, of, _mixes(task)), unit="")
    return replace(task, metrics=(*(task.metrics or ()), group))


def _mixes(task: Task) -> ClientNumbers:
    """Return the weights of the test set's classes for each client that has some of them, [clients, classes]."""
    assert task.test is not None
    counts = np.bincount(task.test[1].cpu().long().numpy())
    shares = np.stack([class_shares(task, client, len(counts)) for client in range(len(task.clients))]) * (counts > 0)
    shares = shares[shares.sum(1) > 0]
    if not len(shares):
        raise BadInput(f"--client-metrics: no client of task {task.name!r} has a class of its test set")
    mixes: ClientNumbers = shares / shares.sum(1, keepdims=True)
    return mixes


class ClientScores:
    """The score on each class so far, and the weights of the classes for each client."""

    def __init__(self, metric: Metric, mixes: ClientNumbers):
        assert metric.streaming is not None
        self._of: Any = metric.streaming()
        self._higher_is_better, self._mixes = metric.higher_is_better, mixes
        self._sums, self._counts = (np.zeros(mixes.shape[1]) for _ in range(2))

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add the examples of a chunk to the sums of their classes."""
        classes, n = targets.cpu().numpy(), len(self._counts)
        self._sums += np.bincount(classes, self._of.per_example(outputs, targets).double().cpu().numpy(), n)
        self._counts += np.bincount(classes, minlength=n)

    def value(self) -> Mapping[str, float]:
        """Return the statistics over clients."""
        of_classes = self._sums / np.maximum(self._counts, 1)
        return statistics(self._mixes @ of_classes, higher_is_better=self._higher_is_better)
