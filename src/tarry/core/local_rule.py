"""What a client does: a LocalRule, called by the one training loop of the project (core.client).

    begin(brief)                        → start, context   where training starts, and what every step may read
    init(w, context, f)                 → state            what goes from step to step; by default the optimiser's
    turn(lap, state, f)                 → state            as a lap begins, of rules that make more than one
    step(w, batch, context, state, f)   → w, state, loss   one mini-batch; w are the trained weights, flat
    finish(w, context, state)           → Outcome          what travels back beside the delta; what the client keeps

An epoch is one lap over the client's batches by `step`; a rule may make more laps over the same batches (`laps`).
f gives pure functions of the flat weights, so a rule is written once and runs one by one or stacked:

    f.grad(w, batch) → gradient, loss      f.init(w) → state, f.descend(w, g, state) → w, state      f.layout
    f.grad(w, (x, t), objective)           the gradient of another objective(outputs, t)
    f.outputs(vec, x)                      what the model of a whole vector (weights and statistics) says of x
    f.received(x)                          what the received model says of the batch at hand
    f.split(w, x)                          one pass through the body, the head at any weights
    f.deep_grad(w, batch, objective)       the gradient of an objective(outputs, features, targets)
    f.features(vec, x)                     what a whole vector's model makes of x before its head
    f.task_loss, f.mean                    the task's own objective; the mean over the batch, of a value an example
    f.optimiser                            the client's optimiser, with its lr and momentum

A step has no Python branch on a tensor's value, never writes to its inputs and draws no hidden randomness: what it
draws, it draws from the brief's key.
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
    """What a client begins a visit with: what was sent, what it kept from its last one, and how much there is to do."""

    weights: Tensor
    payload: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]
    layout: Layout
    key: int = 0  # of this visit's draws (core.rng)
    n_steps: int = 0  # of a lap over the whole visit
    n_batches: int = 0  # of a lap over one epoch


class Outcome(NamedTuple):
    """What a visit leaves behind beside the weights."""

    extras: Mapping[str, Tensor] = NOTHING  # travels to the server
    memory: Mapping[str, Tensor] = NOTHING  # stays with the client
    delta: Tensor | None = None  # travels in the delta's place, when that is not result − sent
    notes: Mapping[str, Tensor] = NOTHING  # for diagnostics: travels nowhere in a deployment


class Split(Protocol):
    """A model cut before its head, after one training pass of the body over some inputs."""

    def head_grad(self, w: Tensor, targets: Any, objective: Objective) -> Tensor:
        """Gradient of an objective at w with respect to the head, flat over all weights: 0 in the body."""

    def grad(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the task's loss and the loss, at weights that differ from the pass's in the head alone."""


class Functions(Protocol):
    """What a rule may call. `w` is the trained part of the vector (layout.params)."""

    layout: Layout
    optimiser: Optimiser
    steady: bool  # the model says the same in training as in use: no dropout, no running statistics

    def task_loss(self, outputs: Tensor, targets: Any, /) -> Tensor:
        """The task's own objective."""

    def mean(self, values: Tensor, /) -> Tensor:
        """Over the examples of the batch at hand. What is stacked may be padded: objectives take their mean by this."""

    def grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: Objective | None = None, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Gradient and value of the task's loss (or another objective) at w on a batch: a training pass, dropout on.

        `still`: running statistics stay what they were.
        """

    def deep_grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: DeepObjective, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `grad`, of an objective that also sees the features: what goes into the head, a row an example."""

    def features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """The features of a whole vector's model, as in use: dropout off, its own running statistics."""

    def known_features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """The features of a vector that is the same all visit long, on the batch at hand: worked out once a visit."""

    def loss(self, w: Tensor, batch: Examples, /) -> Tensor:
        """The task's loss at w on a batch, as a training pass sees it; nothing moves."""

    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """The outputs of a whole vector's model, as in use: dropout off, its own running statistics."""

    def received(self, x: Tensor, /) -> Tensor:
        """The outputs of the received model on the inputs of the batch at hand, worked out once a visit."""

    def split(self, w: Tensor, x: Tensor, /) -> Split:
        """One training pass of the body over x; the head can then be run again and again at little cost."""

    def init(self, w: Tensor, /) -> Any:
        """The client's optimiser before its first step."""

    def descend(self, w: Tensor, g: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """One step of the client's optimiser along g."""


@dataclass(frozen=True)
class LocalRule:
    """Plain training: descend the task's gradient from the weights received. Other rules override what they change."""

    watch: bool = field(default=False, kw_only=True)  # take notes for diagnostics

    @property
    def needs(self) -> frozenset[str]:
        """What of the payload it cannot do without."""
        return frozenset()

    @property
    def takes(self) -> frozenset[str]:
        """What of the payload it uses; nothing else is sent to it by servers of other methods."""
        return self.needs

    @property
    def gives(self) -> frozenset[str]:
        """The extras it sends back."""
        return frozenset()

    @property
    def laps(self) -> tuple[Step, ...]:
        """What is done with every epoch's batches, one lap after the other; the first is what is counted as steps."""
        return (self.step,)

    @property
    def own_optimiser(self) -> bool:
        """Whether it descends by an optimiser of its own, not by the run's."""
        return False

    def check(self, layout: Layout, optimiser: Optimiser) -> None:
        """Raise BadInput where the rule cannot train such a model, or not by such an optimiser."""

    def suits(self, task: Task) -> None:
        """Raise BadInput where the rule makes nothing of such a task."""

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
        """The direction to descend, from the gradient."""
        return g

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:  # noqa: ARG002 - what rules override
        return Outcome()
