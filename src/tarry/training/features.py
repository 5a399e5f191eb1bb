"""Features: the inputs of a model's head, read by a hook; shared by FlatModel and FunctionalModel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from ..core.errors import BadInput
from ..core.local_rule import DeepObjective, Objective
from ..core.task import Task

__all__ = ["features", "grad_with_features", "run_to_head"]


class _Model(Protocol):
    """The functions of a model that features are made of."""

    head: nn.Module | None
    task: Task

    def grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: Objective | None = None, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]: ...

    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor: ...


def features(model: _Model, vec: Tensor, x: Tensor) -> Tensor:
    """Return the features of a whole vector's model on inputs, a row an example."""
    with _head_inputs(model) as seen:
        model.outputs(vec, x)
    return _single(seen)


def grad_with_features(
    model: _Model, w: Tensor, batch: tuple[Tensor, Any], objective: DeepObjective, *, still: bool
) -> tuple[Tensor, Tensor]:
    """Return gradient and value of an objective that also takes the features."""
    with _head_inputs(model) as seen:
        return model.grad(w, batch, lambda out, y: objective(out, _single(seen), y), still=still)


def run_to_head(head: nn.Module | None, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
    """Run a model; return its outputs, and its features where the outputs are the head's of these alone, else None."""
    if head is None:
        return run(), None
    calls: list[tuple[Any, Any, Any]] = []  # arguments by place and by name, and outputs
    with head.register_forward_hook(lambda _, *call: calls.append(call), with_kwargs=True):
        out = run()
    if len(calls) == 1:
        args, named, answer = calls[0]
        if len(args) == 1 and not named and answer is out:
            return out, args[0]
    return out, None


@contextmanager
def _head_inputs(model: _Model) -> Iterator[list[Tensor]]:
    """Yield the list to which each pass of the model adds the input of its head."""
    if model.head is None:
        raise BadInput(f"--task {model.task.name}: its model has no last map of its own, whose inputs are features")
    seen: list[Tensor] = []
    with model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
        yield seen


def _single(seen: list[Tensor]) -> Tensor:
    """Return the features of the only pass; raise BadInput where the head was run more often."""
    if len(seen) != 1:
        raise BadInput(f"--task: the model's last linear or conv map is run {len(seen)} times a pass; features need 1")
    return seen[0].flatten(1)
