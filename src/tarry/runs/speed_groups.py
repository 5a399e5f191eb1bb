"""Measurements of --diagnose beside the notes of the parts. They change no result.

validator    a client's score on test examples with its own mix of classes (OrthoFL's Fig. 6)
by_speed     the accuracy on active clients' and on stragglers' examples, and its variance (Fed-OGD, IV)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import rng
from ..core.rng import Stream
from ..core.task import Examples, Task, has_classes
from ..engine.diagnostics import DiagnosticsLog, Validate
from ..training.flat_model import FlatModel
from .personalize import class_shares
from .task_metrics import measures_accuracy

__all__ = ["by_speed", "validator"]

_VALIDATION = 200  # test examples that a client is scored on
_MOST = 5000  # own examples that a client's accuracy is measured on
_SLOW = 2.0  # a straggler's mean duration is more than this many times the fastest client's


def validator(task: Task, bound: FlatModel, seed: int) -> Validate | None:
    """Return accuracy and loss on test examples drawn with the client's own class shares; None without classes."""
    if task.test is None or not measures_accuracy(task) or not has_classes(task.test):
        return None
    test_x, test_y = task.test
    labels = test_y.cpu().long().numpy()

    @cache
    def examples(client: int) -> Examples:
        weight = class_shares(task, client, labels.max() + 1)[labels] / np.bincount(labels)[labels]
        generator = rng.generator(rng.key(seed, Stream.DATA, client))
        n = min(_VALIDATION, int((weight > 0).sum()))
        chosen = generator.choice(len(labels), n, replace=False, p=weight / weight.sum())
        index = torch.from_numpy(np.sort(chosen)).to(test_x.device)
        return test_x[index], test_y[index]

    def validate(client: int, weights: Tensor) -> tuple[float | None, float]:
        scores = bound.evaluate(weights, examples(client))
        return scores["accuracy"], scores["loss"]

    return validate


def by_speed(
    task: Task,
    log: DiagnosticsLog,
    score: Callable[[Tensor, Examples], float | None],
    weights: Tensor,
    accuracy: float | None,
) -> dict[str, Any] | None:
    """½ (|a₁ − a|² + |a₂ − a|²), with a on the test set, a₁ of the active clients and a₂ of the stragglers.

    There are two readings of a₁ and a₂. In `variance` they are on the groups' own training examples, so that the gap
    between training and test is part of it. In `variance_test` they are on test examples, each class with the share
    that it has among the examples of the group.

    A client is a straggler when its visits take more than twice as long, on average, as the fastest client's.
    """
    seconds = {c: s for c in range(len(task.clients)) if (s := log.seconds_of(c)) is not None}
    if accuracy is None or not seconds:
        return None
    limit = _SLOW * min(seconds.values())
    groups = {
        "active": [c for c, s in seconds.items() if s <= limit],
        "stragglers": [c for c, s in seconds.items() if s > limit],
    }
    found: dict[str, Any] = {"accuracy": accuracy}
    for name, clients in groups.items():
        own = [(score(weights, examples), len(examples[0])) for c in clients if (examples := _some(task, c))]
        known = [(a, n) for a, n in own if a is not None]
        mean = sum(a * n for a, n in known) / sum(n for _, n in known) if known else None
        found[name] = {"clients": len(clients), "accuracy": mean}
    by_class = _accuracy_by_class(task, lambda data: score(weights, data))
    for name, clients in groups.items():
        found[name]["test_accuracy"] = _with_mix(task, clients, by_class)
    found["variance"] = _variance([found[name]["accuracy"] for name in groups], accuracy)
    found["variance_test"] = _variance([found[name]["test_accuracy"] for name in groups], accuracy)
    return found


def _variance(of_groups: Sequence[float | None], accuracy: float) -> float | None:
    known = [a for a in of_groups if a is not None]
    return sum((a - accuracy) ** 2 for a in known) / 2 if len(known) == len(of_groups) else None


def _accuracy_by_class(task: Task, score: Callable[[Examples], float | None]) -> dict[int, float]:
    """Return class → accuracy on its test examples; empty without classes."""
    if task.test is None or not has_classes(task.test):
        return {}
    x, y = task.test
    found = {int(c): score((x[y == c], y[y == c])) for c in torch.bincount(y.long()).nonzero().flatten().tolist()}
    return {c: a for c, a in found.items() if a is not None}


def _with_mix(task: Task, clients: Sequence[int], by_class: Mapping[int, float]) -> float | None:
    """Return the accuracy on test examples, with the mix of classes of these clients' examples; None if unknown."""
    if not by_class:
        return None
    counts = sum(class_shares(task, c, max(by_class) + 1) * len(task.clients[c][1]) for c in clients)
    mix = {c: float(counts[c]) for c in by_class} if clients else {}  # type: ignore[index]
    total = sum(mix.values())
    return sum(n * by_class[c] for c, n in mix.items()) / total if total else None


def _some(task: Task, client: int) -> Examples:
    """A client's examples, every n-th of them if there are very many: they may be sorted by class."""
    x, y = task.clients[client]
    stride = -(-len(x) // _MOST)
    return x[::stride], y[::stride]
