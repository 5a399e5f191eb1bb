"""Client rules: how a client trains in a visit. The one training loop is in training.visit.

    begin(brief)                        → start, context   the weights to start from, and constants of the visit
    init(w, context, f)                 → state            carried from step to step; by default the optimizer's state
    turn(lap, state, f)                 → state            at the beginning of a pass, if a rule makes several
    step(w, batch, context, state, f)   → w, state, loss   one mini-batch; w are the trained weights, flat
    finish(w, context, state)           → Outcome          extras for the server, and the client's memory

An epoch is one pass over the client's batches by `step`; a rule may make several passes over the same batches (`laps`).
f has pure functions of the flat weights, so that one text of a rule trains clients one by one or stacked:

    f.grad(w, batch) → gradient, loss      f.init(w) → state, f.descend(w, g, state) → w, state      f.layout
    f.grad(w, (x, t), objective)           the gradient of another objective(outputs, t)
    f.outputs(vec, x)                      the outputs of a whole vector's model (weights and statistics) on x
    f.received(x)                          the outputs of the received model on the current batch
    f.split(w, x)                          one pass through the body; then the head at any weights
    f.deep_grad(w, batch, objective)       the gradient of an objective(outputs, features, targets)
    f.features(vec, x)                     the features of a whole vector's model on x: the inputs of its head
    f.task_loss, f.mean                    the task's objective; the mean over the batch of one value per example
    f.optimiser                            the client's optimizer, with its lr and momentum

A step has no Python branch on a tensor's value, never writes to its inputs, and takes all randomness from the brief's
key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .layout import Layout
from .optim import Optimiser
from .task import Examples, Task
from .tickets import NOTHING

__all__ = ["Brief", "Context", "DeepObjective", "Functions", "LocalRule", "Objective", "Outcome", "Split", "Step"]

Context = Mapping[str, Any]
Objective = Callable[[Tensor, Any], Tensor]  # outputs, targets → a mean over the batch
DeepObjective = Callable[[Tensor, Tensor, Any], Tensor]  # outputs, features, targets → a mean over the batch
Step = Callable[[Tensor, Examples, Context, Any, "Functions"], tuple[Tensor, Any, Tensor]]


class Brief(NamedTuple):
    """The input of a visit: weights, payload, the client's memory of its last visit, and the number of steps."""

    weights: Tensor
    payload: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]
    layout: Layout
    key: int = 0  # for the random draws of this visit (core.rng)
    n_steps: int = 0  # steps of one pass in the whole visit
    n_batches: int = 0  # steps of one pass in one epoch


class Outcome(NamedTuple):
    """The output of a visit beside the weights."""

    extras: Mapping[str, Tensor] = NOTHING  # uploaded to the server
    memory: Mapping[str, Tensor] = NOTHING  # stays with the client
    delta: Tensor | None = None  # uploaded as the delta; None: result − sent
    notes: Mapping[str, Tensor] = NOTHING  # diagnostics; not uploaded in a deployment


class Split(Protocol):
    """A model cut before its head, after one training pass of the body over some inputs."""

    def head_grad(self, w: Tensor, targets: Any, objective: Objective) -> Tensor:
        """Return the gradient of an objective at w with respect to the head, flat over all weights: 0 in the body."""

    def grad(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradient and value of the task's loss at weights that differ from the pass's in the head only."""


class Functions(Protocol):
    """The client's model, as functions that a rule calls. `w` is the trained part of the vector (layout.params)."""

    layout: Layout
    optimiser: Optimiser
    steady: bool  # the model has the same outputs in training and eval mode: no dropout, no running statistics

    def task_loss(self, outputs: Tensor, targets: Any, /) -> Tensor:
        """Return the task's objective."""

    def mean(self, values: Tensor, /) -> Tensor:
        """Return the mean over the batch's examples. Objectives use it because stacked batches are padded."""

    def grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: Objective | None = None, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return gradient and value of the task's loss (or another objective) at w: a training pass, dropout on.

        With `still`, running statistics do not change.
        """

    def deep_grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: DeepObjective, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `grad`, for an objective that also sees the features: the inputs of the head, one row per example."""

    def features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """Return the features of a whole vector's model in eval mode: dropout off, its own running statistics."""

    def known_features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """Return the features of the current batch at a vector that is constant in the visit; cached."""

    def loss(self, w: Tensor, batch: Examples, /) -> Tensor:
        """Return the task's loss at w on a batch, in training mode; running statistics do not change."""

    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """Return the outputs of a whole vector's model in eval mode: dropout off, its own running statistics."""

    def received(self, x: Tensor, /) -> Tensor:
        """Return the outputs of the received model on the inputs of the current batch; computed once a visit."""

    def split(self, w: Tensor, x: Tensor, /) -> Split:
        """Run one training pass of the body over x; the head can then be run many times at little cost."""

    def init(self, w: Tensor, /) -> Any:
        """Return the initial state of the client's optimizer."""

    def descend(self, w: Tensor, g: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """Return weights and state after one step of the client's optimizer along g."""


@dataclass(frozen=True)
class LocalRule:
    """Plain training: descend the task's gradient from the received weights. Other rules override its methods."""

    watch: bool = field(default=False, kw_only=True)  # collect diagnostics

    @property
    def needs(self) -> frozenset[str]:
        """The payload keys that it requires."""
        return frozenset()

    @property
    def takes(self) -> frozenset[str]:
        """The payload keys that it uses; servers of other methods send it no other keys."""
        return self.needs

    @property
    def gives(self) -> frozenset[str]:
        """The extras that it uploads."""
        return frozenset()

    @property
    def laps(self) -> tuple[Step, ...]:
        """The passes over every epoch's batches, in order; the steps of the first one are counted."""
        return (self.step,)

    @property
    def own_optimiser(self) -> bool:
        """Whether it uses an optimizer of its own instead of the run's."""
        return False

    def check(self, layout: Layout, optimiser: Optimiser) -> None:
        """Raise BadInput if the rule cannot train this model, or not with this optimizer."""

    def suits(self, task: Task) -> None:
        """Raise BadInput if the rule cannot work on this task."""

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        return brief.weights, NOTHING

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:  # noqa: ARG002 - what rules override
        return f.init(w)

    def turn(self, lap: int, state: Any, f: Functions) -> Any:  # noqa: ARG002 - what rules override
        return state

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        g, loss = f.grad(w, batch)
        w, state = f.descend(w, self.bend(g, w, context), state)
        return w, state, loss

    def bend(self, g: Tensor, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002 - what rules override
        """Return the direction to descend, from the gradient."""
        return g

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:  # noqa: ARG002 - what rules override
        return Outcome()
