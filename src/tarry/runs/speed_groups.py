"""Measurements of --diagnose beside the notes of the parts. They change no result.

validator    a client's score on test examples with its own mix of classes (OrthoFL's Fig. 6)
by_speed     the accuracy on active clients' and on stragglers' own examples, and their variance (Fed-OGD, IV)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import rng
from ..core.rng import Stream
from ..core.task import Examples, Task
from ..engine.diagnostics import DiagnosticsLog, Validate
from ..training.flat_model import FlatModel
from .personalize import class_shares, has_classes

__all__ = ["by_speed", "validator"]

_VALIDATION = 200  # test examples that a client is scored on
_MOST = 5000  # own examples that a client's accuracy is measured on
_SLOW = 2.0  # a straggler's mean duration is more than this many times the fastest client's


def validator(task: Task, bound: FlatModel, seed: int) -> Validate | None:
    """Return a score on test examples drawn with the client's own class shares; None without classes."""
    if task.test is None or task.score is None or not has_classes(task.test):
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

    return lambda client, weights: bound.evaluate(weights, examples(client))


def by_speed(
    task: Task,
    log: DiagnosticsLog,
    score: Callable[[Tensor, Examples], float | None],
    weights: Tensor,
    accuracy: float | None,
) -> dict[str, Any] | None:
    """½ (|a₁ − a|² + |a₂ − a|²): a on the test set, a₁ and a₂ on active clients' and stragglers' examples.

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
    ours = [g["accuracy"] for g in (found["active"], found["stragglers"])]
    found["variance"] = None if None in ours else sum((a - accuracy) ** 2 for a in ours) / 2
    return found


def _some(task: Task, client: int) -> Examples:
    """A client's examples, every n-th of them if there are very many: they may be sorted by class."""
    x, y = task.clients[client]
    stride = -(-len(x) // _MOST)
    return x[::stride], y[::stride]
