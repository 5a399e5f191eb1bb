"""Client rules: how a client trains in a visit. The one training loop is in training.visit.

    begin(visit)                            → start, context   the weights to start from, and constants of the visit
    init(w, context, model)                 → state            carried from step to step; by default the optimizer's
    begin_pass(index, state, model)         → state            at the beginning of a pass, if a rule makes several
    step(w, batch, context, state, model)   → w, state, loss   one mini-batch; w are the trained weights, flat
    finish(w, context, state)               → VisitOutput      extras for the server, and the client's memory

An epoch is one pass over the client's batches by `step`; a rule may make several passes over them (`passes`). `model`
has pure functions of the flat weights, so that one text of a rule trains clients one by one or stacked:

    model.grad(w, batch) → gradient, loss            of the task's objective
    model.grad(w, (x, t), objective)                 of another objective(outputs, t)
    model.grad_with_features(w, batch, objective)    of an objective(outputs, features, targets)
    model.init(w) → state                            the optimizer's state before its first step
    model.apply_gradient(w, g, state) → w, state     one step of the client's optimizer
    model.outputs(vec, x)                            the outputs of a whole vector's model (weights and statistics)
    model.received_outputs(x)                        the outputs of the received model on the current batch
    model.features(vec, x)                           the features of a whole vector's model: the inputs of its head
    model.head_split(w, x)                           one pass through the body; then the head at any weights
    model.task_loss, model.mean                      the task's objective; the mean over the batch of one value each
    model.layout, model.optimizer                    the layout; the client's optimizer, with its lr and momentum

A step has no Python branch on a tensor's value, never writes to its inputs, and takes all randomness from the brief's
key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .layout import Layout
from .one_line import one_line
from .optim import Optimizer
from .task import Examples, Task
from .tickets import NOTHING

__all__ = [
    "ClientModel",
    "Context",
    "FeatureObjective",
    "HeadSplit",
    "LocalRule",
    "Objective",
    "RuleStep",
    "VisitInput",
    "VisitOutput",
]

Context = Mapping[str, Any]
Objective = Callable[[Tensor, Any], Tensor]  # outputs, targets → a mean over the batch
FeatureObjective = Callable[[Tensor, Tensor, Any], Tensor]  # outputs, features, targets → a mean over the batch
RuleStep = Callable[[Tensor, Examples, Context, Any, "ClientModel"], tuple[Tensor, Any, Tensor]]


class VisitInput(NamedTuple):
    """The input of a visit: weights, payload, the client's memory of its last visit, and the number of steps.

    >>> seen = []
    >>> class Watched(tarry.LocalRule):
    ...     def begin(self, visit):
    ...         seen.append(visit)
    ...         return super().begin(visit)
    >>> method = tarry.Method("watched", local=Watched())
    >>> result = tarry.run(method, "digits", clients=2, updates=1, steps=4, executor="inline")
    >>> seen[0].n_steps, seen[0].weights.shape == (seen[0].layout.size,)
    (4, True)
    """

    weights: Tensor
    payload: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]
    layout: Layout
    key: int = 0  # for the random draws of this visit (core.rng)
    n_steps: int = 0  # steps of one pass in the whole visit
    n_batches: int = 0  # steps of one pass in one epoch

    def __repr__(self) -> str:
        return one_line(self)


class VisitOutput(NamedTuple):
    """The output of a visit beside the weights.

    >>> tarry.VisitOutput(extras={"control": torch.zeros(3)}, memory={"last": torch.ones(3)})
    VisitOutput(extras={'control': tensor[3]}, memory={'last': tensor[3]})
    """

    extras: Mapping[str, Tensor] = NOTHING  # uploaded to the server
    memory: Mapping[str, Tensor] = NOTHING  # stays with the client
    delta: Tensor | None = None  # uploaded as the delta; None: result − sent
    notes: Mapping[str, Tensor] = NOTHING  # diagnostics; not uploaded in a deployment

    def __repr__(self) -> str:
        return one_line(self)


class HeadSplit(Protocol):
    """A model cut before its head, after one training pass of the body over some inputs."""

    def head_grad(self, w: Tensor, targets: Any, objective: Objective) -> Tensor:
        """Return the gradient of an objective at w with respect to the head, flat over all weights: 0 in the body."""

    def grad(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradient and value of the task's loss at weights that differ from the pass's in the head only."""


class ClientModel(Protocol):
    """The client's model, as functions that a rule calls. `w` is the trained part of the vector (layout.params).

    In the examples the model is f(x) = w·x with w = (1, 2), the loss is the squared error, and the batch has the inputs
    (1, 0) and (0, 1) with the target 0; the optimizer is SGD with lr 0.1.

    >>> class SignDescent(tarry.LocalRule):
    ...     def step(self, w, batch, context, state, model):
    ...         g, loss = model.grad(w, batch)
    ...         return w - 0.1 * g.sign(), state, loss
    >>> w, state, loss = SignDescent().step(w, batch, {}, None, model)
    >>> w, loss
    (tensor([0.9000, 1.9000]), tensor(2.5000))
    """

    layout: Layout
    optimizer: Optimizer
    train_equals_eval: (
        bool  # the model has the same outputs in training and eval mode: no dropout, no running statistics
    )

    def task_loss(self, outputs: Tensor, targets: Any, /) -> Tensor:
        """Return the task's loss of outputs.

        >>> model.task_loss(torch.tensor([[1.0], [3.0]]), batch[1])
        tensor(5.)
        """

    def mean(self, values: Tensor, /) -> Tensor:
        """Return the mean over the batch's examples. Objectives use it because stacked batches are padded.

        >>> model.mean(torch.tensor([1.0, 3.0]))
        tensor(2.)
        """

    def grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: Objective | None = None, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return gradient and value of the task's loss (or another objective) at w: a training pass, dropout on.

        With `still`, running statistics do not change.

        >>> model.grad(w, batch)
        (tensor([1., 2.]), tensor(2.5000))
        >>> model.grad(w, batch, lambda outputs, targets: outputs.sum())
        (tensor([1., 1.]), tensor(3.))
        """

    def grad_with_features(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: FeatureObjective, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Compute `grad` for an objective that also sees the features: the inputs of the head, one row per example.

        >>> def objective(outputs, features, targets):
        ...     return (outputs * features.sum(1, keepdim=True)).sum()
        >>> model.grad_with_features(w, batch, objective)
        (tensor([1., 1.]), tensor(3.))
        """

    def features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """Return the features of a whole vector's model in eval mode: dropout off, its own running statistics.

        >>> model.features(w, batch[0])
        tensor([[1., 0.],
                [0., 1.]])
        """

    def cached_features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """Return the features of the current batch at a vector that is constant in the visit; cached.

        >>> model.cached_features(w, batch[0])
        tensor([[1., 0.],
                [0., 1.]])
        """

    def loss(self, w: Tensor, batch: Examples, /) -> Tensor:
        """Return the task's loss at w on a batch, in training mode; running statistics do not change.

        >>> model.loss(torch.zeros(2), batch)
        tensor(0.)
        """

    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """Return the outputs of a whole vector's model in eval mode: dropout off, its own running statistics.

        >>> model.outputs(w, batch[0]).flatten()
        tensor([1., 2.])
        """

    def received_outputs(self, x: Tensor, /) -> Tensor:
        """Return the outputs of the received model on the inputs of the current batch; computed once a visit.

        >>> model.received_outputs(batch[0]).flatten()
        tensor([1., 2.])
        """

    def head_split(self, w: Tensor, x: Tensor, /) -> HeadSplit:
        """Run one training pass of the body over x; the head can then be run many times at little cost.

        >>> split = model.head_split(w, batch[0])
        >>> split.grad(2 * w, batch[1])
        (tensor([2., 4.]), tensor(10.))
        """

    def init(self, w: Tensor, /) -> Any:
        """Return the initial state of the client's optimizer.

        >>> model.init(w) is None
        True
        """

    def apply_gradient(self, w: Tensor, g: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """Return weights and state after one step of the client's optimizer along g.

        >>> model.apply_gradient(w, torch.tensor([1.0, 0.0]), model.init(w))
        (tensor([0.9000, 2.0000]), None)
        """


@dataclass(frozen=True)
class LocalRule:
    """Plain training: descend the task's gradient from the received weights. Other rules override its methods.

    In the examples `model`, `w` and `batch` are those of `ClientModel`, and `visit` begins at w.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Clipped(tarry.LocalRule):
    ...     limit: float = 1.0
    ...     def transform_grad(self, g, w, context):
    ...         return g * (self.limit / g.norm().clamp_min(self.limit))
    >>> method = tarry.Method("clipped", local=Clipped(0.5))
    >>> tarry.run(method, "digits", clients=3, updates=5).updates
    5
    """

    diagnose: bool = field(default=False, kw_only=True)  # collect diagnostics

    @property
    def required_payload(self) -> frozenset[str]:
        """The payload keys that it requires.

        >>> sorted(tarry.methods["scaffold"]().local.required_payload)
        ['c']
        """
        return frozenset()

    @property
    def used_payload(self) -> frozenset[str]:
        """The payload keys that it uses; servers of other methods send it no other keys.

        >>> tarry.LocalRule().used_payload
        frozenset()
        """
        return self.required_payload

    @property
    def uploads(self) -> frozenset[str]:
        """The extras that it uploads.

        >>> sorted(tarry.methods["asynccurve"]().local.uploads)
        ['control']
        """
        return frozenset()

    @property
    def passes(self) -> tuple[RuleStep, ...]:
        """The passes over every epoch's batches, in order; the steps of the first one are counted.

        >>> len(tarry.methods["asynccurve"]().local.passes), len(tarry.LocalRule().passes)
        (2, 1)
        """
        return (self.step,)

    @property
    def own_optimizer(self) -> bool:
        """Return whether it uses an optimizer of its own instead of the run's.

        >>> tarry.methods["asynccurve"]().local.own_optimizer, tarry.LocalRule().own_optimizer
        (True, False)
        """
        return False

    def check(self, layout: Layout, optimizer: Optimizer) -> None:
        """Raise BadInput if the rule cannot train this model, or not with this optimizer.

        >>> class NeedsStatistics(tarry.LocalRule):
        ...     def check(self, layout, optimizer):
        ...         if not layout.stats:
        ...             raise tarry.BadInput("this rule needs a model with running statistics")
        >>> NeedsStatistics().check(model.layout, model.optimizer)
        Traceback (most recent call last):
        tarry.core.errors.BadInput: this rule needs a model with running statistics
        """

    def check_task(self, task: Task) -> None:
        """Raise BadInput if the rule cannot work on this task.

        >>> class NeedsColor(tarry.LocalRule):
        ...     def check_task(self, task):
        ...         if task.train[0].shape[1] != 3:
        ...             raise tarry.BadInput(f"task {task.name!r} has no color images")
        >>> NeedsColor().check_task(tarry.tasks["digits"]())
        Traceback (most recent call last):
        tarry.core.errors.BadInput: task 'digits' has no color images
        """

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        """Return the weights to start from, and constants of the visit.

        >>> start, context = tarry.LocalRule().begin(visit)
        >>> start, dict(context)
        (tensor([1., 2.]), {})
        """
        return visit.weights, NOTHING

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:  # noqa: ARG002 - what rules override
        """Return the state that is carried from step to step: by default the optimizer's.

        >>> tarry.LocalRule().init(w, {}, model) == model.init(w)
        True
        """
        return model.init(w)

    def begin_pass(self, pass_index: int, state: Any, model: ClientModel) -> Any:  # noqa: ARG002 - what rules override
        """Return the state at the beginning of a pass, if the rule makes several.

        >>> tarry.LocalRule().begin_pass(1, "state", model)
        'state'
        """
        return state

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        """Return weights, state and loss after one mini-batch.

        >>> tarry.LocalRule().step(w, batch, {}, model.init(w), model)
        (tensor([0.9000, 1.8000]), None, tensor(2.5000))
        """
        g, loss = model.grad(w, batch)
        w, state = model.apply_gradient(w, self.transform_grad(g, w, context), state)
        return w, state, loss

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002 - what rules override
        """Return the direction to descend, from the gradient.

        >>> class Ascent(tarry.LocalRule):
        ...     def transform_grad(self, g, w, context):
        ...         return -g
        >>> Ascent().step(w, batch, {}, model.init(w), model)[0]
        tensor([1.1000, 2.2000])
        """
        return g

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:  # noqa: ARG002 - what rules override
        """Return the extras for the server and the client's memory, from the last weights of the visit.

        >>> class Remember(tarry.LocalRule):
        ...     def finish(self, w, context, state):
        ...         return tarry.VisitOutput(memory={"last": w})
        >>> Remember().finish(w, {}, None).memory["last"]
        tensor([1., 2.])
        """
        return VisitOutput()
