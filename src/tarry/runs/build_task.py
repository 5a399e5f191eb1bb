"""Build the task that a spec names: split among its clients, checked, with unlabeled inputs for the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..config.components import Choice, errors_under_flag
from ..config.spec import Spec
from ..core import rng
from ..core.errors import BadInput, first_line
from ..core.rng import Stream
from ..core.shards import MappedShards, client_sizes
from ..core.task import Task
from ..tasks import at_least
from ..tasks.data.sets import catalog
from ..tasks.validation import draw, hold_out_of_clients

__all__ = ["add_unlabeled", "build_task", "check_model_and_loss", "dtype_of", "limit_of"]

DEFAULT_CLIENTS = 10


def build_task(spec: Spec) -> Task:
    """Return the task with as many clients as the spec asks for."""
    task = spec.task
    if isinstance(task, Choice):
        task = task.build("task")
    if spec.validation is not None and task.validation is not None:
        raise BadInput(f"--validation {spec.validation}: task {task.name!r} has a validation set; leave this flag out")
    for part in ("train", "validation", "test"):
        if getattr(task, part) is not None:
            _check_pair(getattr(task, part), f"task {task.name!r}: {part}=")
    if task.train is not None:
        partition = spec.partition
        if isinstance(partition, Choice):
            partition = partition.build("partition")
        partitioner = at_least(partition, spec.min_samples)
        generator = rng.generator(rng.key(spec.seed, Stream.PARTITION))
        held = None if spec.validation is None else draw(task, spec.validation, spec.seed)
        task = task.split(partitioner, spec.clients or DEFAULT_CLIENTS, generator, held)
    elif not task.clients:
        raise BadInput(f"--task {task.name}: it has neither clients nor training examples to deal out")
    elif spec.clients is not None and spec.clients != len(task.clients):
        raise BadInput(f"--clients {spec.clients}: task {task.name!r} comes with {len(task.clients)} clients")
    _check_clients(task)
    if spec.validation is not None and task.validation is None:
        task = hold_out_of_clients(task, spec.validation, spec.seed)
    return task.to(dtype_of(spec), spec.device)


def _check_clients(task: Task) -> None:
    """Raise BadInput unless each client has at least one example, a pair of tensors; those in files are not read."""
    if isinstance(task.clients, MappedShards):
        if 0 in (sizes := client_sizes(task.clients)):
            raise BadInput(f"task {task.name!r}: client {sizes.index(0)} has no examples")
        return
    given: Any = task.clients
    for client, examples in enumerate(given):
        _check_pair(examples, f"task {task.name!r}: client {client}")
        if len(examples[0]) == 0 or len(examples[0]) != len(examples[1]):
            x, y = examples
            raise BadInput(f"task {task.name!r}: client {client} has {len(x)} examples and {len(y)} targets")


def _check_pair(examples: Any, who: str) -> None:
    """Raise BadInput unless examples are a pair of tensors."""
    if not isinstance(examples, tuple | list) or len(examples) != 2:
        raise BadInput(
            f"{who} has a {type(examples).__name__}, not a pair of tensors; tarry.Task.from_dataset makes a task of a"
            " data set, or of a list with one for each client"
        )
    if not all(isinstance(t, Tensor) for t in examples):
        kinds = " and ".join(type(t).__name__ for t in examples)
        raise BadInput(f"{who} has {kinds}; torch.as_tensor makes tensors of them")


def limit_of(spec: Spec) -> int | None:
    """The number of training examples of a data set that the spec asks for."""
    if not isinstance(spec.task, Choice) or spec.task.name not in catalog():
        return None
    limit = spec.task.params.get("limit")
    return limit if isinstance(limit, int) else None


def add_unlabeled(task: Task, spec: Spec) -> tuple[Task, str | None]:
    """Return the task with unlabeled inputs for the server, and what they are if the spec does not choose them."""
    choice, default = spec.unlabeled, None
    if choice is None and task.unlabeled is not None:
        return task, f"the task's own, {len(task.unlabeled):,}"
    if choice is None:
        choice, default = Choice("noise"), "noise, which teaches little"
    with errors_under_flag("unlabeled"):
        inputs = choice.build("unlabeled")(task, spec.seed)
    return replace(task, unlabeled=inputs, unlabeled_mask=None).to(dtype_of(spec), spec.device), default


def check_model_and_loss(task: Task, module: nn.Module) -> Any:
    """Return the model's outputs of two examples; raise BadInput that names what is wrong with it or the loss."""
    x, y = (t[:2].clone() for t in task.clients[0])  # a model may write into its input
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(x)
            loss: Any = task.loss(outputs, y)
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
    return outputs


def dtype_of(spec: Spec) -> torch.dtype:
    """The dtype of weights and inputs."""
    return torch.float64 if spec.dtype == "float64" else torch.float32
