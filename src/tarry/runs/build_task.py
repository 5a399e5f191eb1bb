"""The task that a spec names, dealt out to its clients, tried, and with inputs for the server where it wants some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..config.spec import Choice, Spec, under_flag
from ..core import rng
from ..core.errors import BadInput, first_line
from ..core.rng import Stream
from ..core.task import Task
from ..tasks import at_least, partitions, tasks
from ..tasks.data.sets import catalogue
from ..tasks.unlabelled import unlabelled_sets

__all__ = ["dtype_of", "limit_of", "task_of", "tried", "with_unlabelled"]

DEFAULT_CLIENTS = 10


def task_of(spec: Spec) -> Task:
    """The task, with as many clients as are asked for."""
    task = spec.task
    if isinstance(task, Choice):
        task = tasks.build(task.name, task.params)
    if task.train is not None:
        cut = spec.partition
        if isinstance(cut, Choice):
            cut = partitions.build(cut.name, cut.params)
        partitioner = at_least(cut, spec.min_samples)
        generator = rng.generator(rng.key(spec.seed, Stream.PARTITION))
        task = task.split(partitioner, spec.clients or DEFAULT_CLIENTS, generator)
    elif not task.clients:
        raise BadInput(f"--task {task.name}: it has neither clients nor training examples to deal out")
    elif spec.clients is not None and spec.clients != len(task.clients):
        raise BadInput(f"--clients {spec.clients}: task {task.name!r} comes with {len(task.clients)} clients")
    given: Any = enumerate(task.clients)
    for client, (x, y) in given:
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            kinds = " and ".join(type(t).__name__ for t in (x, y))
            raise BadInput(f"task {task.name!r}: client {client} has {kinds}; torch.as_tensor makes tensors of them")
        if len(x) == 0 or len(x) != len(y):
            raise BadInput(f"task {task.name!r}: client {client} has {len(x)} examples and {len(y)} targets")
    return task.to(dtype_of(spec), spec.device)


def limit_of(spec: Spec) -> int | None:
    """How many training examples of a data set are asked for."""
    if not isinstance(spec.task, Choice) or spec.task.name not in catalogue():
        return None
    limit = tasks.check(spec.task.name, spec.task.params)[1].get("limit")
    return limit if isinstance(limit, int) else None


def with_unlabelled(task: Task, spec: Spec) -> tuple[Task, str | None]:
    """The task with the server's inputs without labels: those asked for, its own, or noise; and what was not asked."""
    choice, told = spec.unlabelled, None
    if choice is None and task.unlabelled is not None:
        return task, f"the task's own, {len(task.unlabelled):,}"
    if choice is None:
        choice, told = Choice("noise"), "noise, which teaches little"
    with under_flag("unlabelled"):
        inputs = unlabelled_sets.build(choice.name, choice.params)(task, spec.seed)
    return replace(task, unlabelled=inputs, unlabelled_mask=None).to(dtype_of(spec), spec.device), told


def tried(task: Task, module: nn.Module) -> None:
    """The model and the loss on two examples, before anything is written: what is wrong with them is told by name."""
    x, y = (t[:2].clone() for t in task.clients[0])  # a model may write to what it is given
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            loss: Any = task.loss(module(x), y)
    except Exception as e:
        raise BadInput(
            f"task {task.name!r}: its model or loss fails on client 0's first {len(x)} examples, inputs of"
            f" {tuple(x.shape)} {x.dtype} and targets of {tuple(y.shape)} {y.dtype}"
            f" ({type(e).__name__}: {first_line(e)})"
        ) from e
    finally:
        for part, mode in modes:
            part.training = mode
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        what = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise BadInput(
            f"task {task.name!r}: its loss returned {what}; it should return one number, a mean over the batch"
        )


def dtype_of(spec: Spec) -> torch.dtype:
    """What a run computes in."""
    return torch.float64 if spec.dtype == "float64" else torch.float32
