"""Checks for tasks with classes: targets are integers, or probabilities of all classes that sum to 1."""

from __future__ import annotations

import torch

from ..core.errors import BadInput
from ..core.task import Task

__all__ = ["has_classes", "want_classes"]


def has_classes(task: Task) -> bool:
    """Return whether the first client's targets are classes."""
    y = task.clients[0][1]
    if not y.is_floating_point():
        return True
    shares = y.ndim > 1 and y.shape[-1] > 1 and bool((y >= 0).all())
    return shares and torch.allclose(y.sum(-1), y.new_ones(()), atol=1e-3)


def want_classes(task: Task, who: str, way_out: str) -> None:
    """Raise BadInput if the task has no classes. `who` names what needs them, and begins with its flag."""
    if not has_classes(task):
        y = task.clients[0][1]
        form = "×".join(map(str, y.shape[1:])) or "one number"
        raise BadInput(
            f"{who} compares what models say of classes, and the targets of task {task.name!r} are none ({form} an"
            f" example, {y.dtype}); {way_out}"
        )
