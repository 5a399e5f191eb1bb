"""A method is a small frozen record of six parts; whoever drives the server runs the same record.

    local      LocalRule                                what a client does in a step
    correct    Update → Update                          staleness weights, delay correction
    aggregate  Update | None → Update | None            each arrival, buffer, round (out None = wait)
    step       Update → new global weights              add, mix, ...
    reply      Update → Start | None                    this client's next start (None = what is offered, or the global)
    dispatch   Roster → clients                         who is handed work now

A server part is `init(weights) → state` and `part(x, state, now) → (out, state)`: output first, state second. State
is a plain record (tensors, numbers, text, lists, dicts), so every method checkpoints for free. Parts never write to
their inputs, but for two things in their state that are written in place: a `Table` of rows and `Marks` of numbers by
client (core.table). `now` is the moment of the arrival, before anything changed.

A part may do more. `offer(client, state, now)` adds to what a client is handed: a payload, or weights of its
own in the global's place when the client's last reply made no start. `settle(state, now)`, of an aggregate, is asked
after the last arrival of an instant whether to step now: for methods whose server works in epochs. `wakes(state, now)`
is the instant at which it wants to be asked even if nobody arrives then (inf: none). `hear(update, state, now)`, of a
dispatch, is told of every update that is accepted, before anything else is done with it, and returns its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from . import rng
from .idle_clients import Roster
from .layout import Layout
from .local_rule import Functions, LocalRule
from .task import Examples, Task
from .tickets import Offer, Start, Update

__all__ = ["Geodesic", "Horizon", "Lab", "Method", "Now", "Part", "Personal", "Predict", "stateless"]

X = TypeVar("X")
Y = TypeVar("Y")


class Horizon(NamedTuple):
    """What is known of a run from its beginning: its budget (None where there is no such end), and clients' rates."""

    time: float | None = None
    updates: int | None = None
    rounds: int | None = None
    lr_decay: float = 1.0  # what clients' learning rate is multiplied by at every server step


class Lab(Protocol):
    """What a server may compute with the model: on inputs without labels, in use (dropout off, statistics still)."""

    inputs: Tensor  # the unlabelled set
    mask: Tensor | None  # which places of a sequence count (token models), else None
    distil_lr: float | None  # the task's own rate for distillation, if it names one

    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """The outputs of a whole vector's model."""

    def grad(self, vec: Tensor, x: Tensor, objective: Callable[[Tensor], Tensor], /) -> tuple[Tensor, Tensor]:
        """Gradient of objective(outputs), over the trained weights, and its value."""


#: start Θ, end Θ̂, t, update → γ(t), where γ(0) = Θ and γ(1) = Θ̂: the way a global travels
Geodesic = Callable[[Tensor, Tensor, float, Update], Tensor]


class Now(NamedTuple):
    """What a part may know of the moment."""

    weights: Tensor  # the global, before this arrival changes it
    layout: Layout
    version: int  # server steps so far
    time: float
    in_flight: int  # tickets still out
    n_clients: int
    stream: int  # of the server's draws
    moment: int  # counts the decisions taken
    accepted: int = 0  # updates so far
    horizon: Horizon = Horizon()
    lab: Lab | None = None
    notes: dict[str, Any] | None = None  # diagnostics of this arrival go here, when they are asked for
    since: float = 0.0  # without a break somebody has been training

    @property
    def progress(self) -> float:
        """The share of the budget that is used, from 0 to 1 (0 where there is no end in sight)."""
        h = self.horizon
        used = ((self.time, h.time), (self.accepted, h.updates), (self.version, h.rounds))
        return min(1.0, max((done / end for done, end in used if end), default=0.0))

    def rate(self, version: int) -> float:
        """The learning rate of work handed out after so many server steps, over that of the first."""
        return self.horizon.lr_decay**version

    @property
    def key(self) -> int:
        """For draws of this moment (core.rng)."""
        return rng.extend(self.stream, self.moment)

    def moved(self, update: Update) -> Tensor:
        """Where an update pulls the global: its delta, and for running statistics the way to the client's own.

        A stale delta of a variance added to a global that has moved on could make it negative; going part of the way
        towards the client's value cannot.
        """
        if not self.layout.stats:
            return update.delta
        n = self.layout.n_params
        return torch.cat([update.delta[:n], update.local[n:] - self.weights[n:]])


def _no_state(_: Tensor) -> None:
    return None


@dataclass(frozen=True)
class Part(Generic[X, Y]):
    """A server part: a pure function of (x, state, now), and the state it begins with."""

    apply: Callable[[X, Any, Now], tuple[Y, Any]]
    init: Callable[[Tensor], Any] = _no_state
    offer: Callable[[int, Any, Now], Offer | None] | None = None
    settle: Callable[[Any, Now], tuple[Update | None, Any]] | None = None
    wakes: Callable[[Any, Now], float] | None = None
    hear: Callable[[Update, Any, Now], Any] | None = None
    along: Callable[[Geodesic], Part[X, Y]] | None = None  # of a step: the same step along another geodesic
    sends: frozenset[str] = frozenset()  # what it puts into a payload
    demands: frozenset[str] = frozenset()  # what of it clients must use, or the part makes no sense
    reads: frozenset[str] = frozenset()  # the extras it cannot do without
    drops: frozenset[str] = frozenset()  # of an aggregate: the extras it cannot pass on
    formula: Any = None  # what it computes, where another part has to know
    fits: Callable[[Method], str | None] | None = None  # why it cannot be a part of that method, if so
    suits: Callable[[Task], None] | None = None  # raises BadInput where it makes nothing of that task
    weighs: bool = False  # of a correct part: it weighs updates, and corrects nothing

    def __call__(self, x: X, state: Any, now: Now) -> tuple[Y, Any]:
        return self.apply(x, state, now)


def stateless(fn: Callable[[X, Now], Y]) -> Part[X, Y]:
    """A part without memory, from a function of (x, now)."""
    return Part(lambda x, state, now: (fn(x, now), state))


def _keep(update: Update, state: None, _: Now) -> tuple[Update, None]:
    return update, state


def _each(update: Update | None, state: None, _: Now) -> tuple[Update | None, None]:
    return update, state


def _add(update: Update, now: Now) -> Tensor:
    return torch.add(now.weights, now.moved(update), alpha=update.weight)


def _the_global(_: Update, state: None, __: Now) -> tuple[Start | None, None]:
    return None, state


def _refill(roster: Roster, state: None, now: Now) -> tuple[list[int], None]:
    return roster.draw(roster.limit - now.in_flight, now), state


#: the global weights and the states of all parts by name → what the method answers with: what is tested and kept
Answer = Callable[[Tensor, Mapping[str, Any]], Tensor]
#: a client's weights, its own examples, f → what it says of inputs, in place of the model's outputs
Predict = Callable[[Tensor, Examples, Functions], Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Personal:
    """How a client makes the answer its own when the run is over (--personalise)."""

    tune: LocalRule = field(default_factory=LocalRule)  # what it fine-tunes by, on its own examples
    predict: Predict | None = None  # how it then answers; None = as the model does
    own: bool = False  # it begins from its own model (its next start, or what it was sent), not from the answer


@dataclass(frozen=True)
class Method:
    """A federated method: a name, what staleness means to it, and six parts with plain defaults."""

    name: str
    staleness: str = "ignored"
    local: LocalRule = field(default_factory=LocalRule)
    correct: Part[Update, Update] = field(default_factory=lambda: Part(_keep))
    aggregate: Part[Update | None, Update | None] = field(default_factory=lambda: Part(_each))
    step: Part[Update, Tensor] = field(default_factory=lambda: stateless(_add))
    reply: Part[Update, Start | None] = field(default_factory=lambda: Part(_the_global))
    dispatch: Part[Roster, list[int]] = field(default_factory=lambda: Part(_refill))
    answer: Answer | None = None  # None = the global weights
    unlabelled: bool = False  # it needs a set of inputs without labels (now.lab)
    around: Callable[[Method], Method] | None = None  # what it puts around any server: a distillation, ...
    plain: Method | None = None  # the server it is put around here
    correction: Part[Update, Update] | None = None  # what its trust means as a correct part of another's server
    personal: Personal = field(default_factory=Personal)  # how its clients make the answer their own
