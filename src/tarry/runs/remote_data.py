"""Runs whose clients hold their examples elsewhere: the server has the model, the loss, and at most a test set."""

from __future__ import annotations

from dataclasses import replace

from ..config.components import Choice
from ..config.spec import Spec
from ..core.errors import BadInput
from ..core.task import Task
from .build import BuiltRun, build_run

__all__ = ["build_without_data"]


def build_without_data(spec: Spec, *, may_lack_shapes: bool) -> BuiltRun:
    """Build the run of a server without client data; the examples that its task finds only give shapes.

    `may_lack_shapes`: whether a task without any example will do, as where clients do not train by the task.
    """
    task: Task = spec.task.build("task") if isinstance(spec.task, Choice) else spec.task
    if task.train is None and not task.clients:
        if task.test is None and may_lack_shapes:
            return build_run(spec, has_examples=False)
        if task.test is None:
            raise BadInput(f"task = {task.name}: on the server it needs a test set, or examples to see shapes by")
        task = replace(task, clients=[task.test])
    alone = None if task.train is None else 1
    if task.train is None:
        task = replace(task, clients=[task.clients[0]])
    built = build_run(replace(spec, task=task, clients=alone, partition=Choice("iid"), concurrency=None))
    return replace(built, spec=spec)
