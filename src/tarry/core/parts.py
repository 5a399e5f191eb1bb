"""Server parts: what a method does with an update, one class for each place in a Method.

    Correct     Update → Update                   staleness weights, delay correction
    Aggregate   Update | None → Update | None     each arrival, buffer, round (None in: lost; None out: wait)
    Step        Update → new global weights       add, mix, ...
    Reply       Update → NextStart | None         the client's next start (None: the offered or global weights)
    Dispatch    IdleClients → clients             which idle clients get work now

A part is `init(weights) → state` and `part(x, state, view) → (out, state)`: output first, state second. The state is a
plain record (tensors, numbers, text, lists, dicts), so every method can be checkpointed. A part never writes to its
inputs, with two exceptions in its state that are written in place: a `ClientTable` of rows and `ClientScalars`, numbers
by client (core.client_table). `view` is the server at the moment of the arrival, before anything changed.

A part may also define hooks. `offer(client, state, view)` adds to a hand-out: a payload, or weights that replace the
global if the client has no start of its own. The other hooks belong to one place and are fields of its class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from .errors import BadInput
from .idle_clients import IdleClients
from .one_line import one_line
from .schedule import RateSchedule
from .task import Task
from .tickets import NextStart, TicketExtras, Update

if TYPE_CHECKING:
    from .method import Geodesic, Method, ServerView

__all__ = [
    "ADD",
    "EACH_ARRIVAL",
    "KEEP",
    "PLACES",
    "REFILL",
    "SEND_GLOBAL",
    "Aggregate",
    "Correct",
    "Dispatch",
    "MixStep",
    "Part",
    "Reply",
    "Step",
    "stateless",
]

#: the places of the server parts in a Method, in the order in which they are called
PLACES = ("correct", "aggregate", "step", "reply", "dispatch")

X = TypeVar("X")
Y = TypeVar("Y")


def _no_state(_: Tensor) -> None:
    return None


@dataclass(frozen=True, repr=False)
class Part(Generic[X, Y]):
    """A server part: a pure function of (x, state, view), and its initial state. It fits any place of a Method.

    >>> count = tarry.Part(lambda x, state, view: (x, state + 1), init=lambda weights: 0)
    >>> count("an update", 41, view=None)
    ('an update', 42)
    >>> tarry.Method("counting", correct=count)
    Method('counting', correct=<lambda>)
    """

    apply: Callable[[X, Any, ServerView], tuple[Y, Any]]
    init: Callable[[Tensor], Any] = _no_state
    offer: Callable[[int, Any, ServerView], TicketExtras | None] | None = None
    payload_keys: frozenset[str] = frozenset()  # the payload keys that `offer` or the reply adds
    must_be_used: frozenset[str] = frozenset()  # those of them that the clients' rule must require
    required_extras: frozenset[str] = frozenset()  # the extras that clients must upload
    incompatibility: Callable[[Method], str | None] | None = None  # why the part is wrong in that method; None: it fits
    check_task: Callable[[Task], None] | None = None  # raises BadInput if the part cannot work on that task

    def __call__(self, x: X, state: Any, view: ServerView) -> tuple[Y, Any]:
        return self.apply(x, state, view)

    def __repr__(self) -> str:
        return one_line(self)

    @classmethod
    def of(cls, part: Part[X, Y]) -> Self:
        """Return the part as one of this class; raise BadInput if it belongs to another place of a method.

        >>> halve = tarry.stateless(lambda update, view: update.replace(weight=0.5))
        >>> type(tarry.Correct.of(halve)).__name__
        'Correct'
        >>> tarry.Step.of(tarry.Correct.of(halve))
        Traceback (most recent call last):
        tarry.core.errors.BadInput: step=Correct: wants a tarry.Step, or a tarry.Part for any place
        """
        if isinstance(part, cls):
            return part
        if type(part) is not Part:
            kind, place = type(part).__name__, cls.__name__
            raise BadInput(f"{place.lower()}={kind}: wants a tarry.{place}, or a tarry.Part for any place")
        return cls(**vars(part))


@dataclass(frozen=True, repr=False)
class Correct(Part[Update, Update]):
    """Correct an update on arrival: a weight for its staleness, another displacement for its delay.

    >>> staleness = []
    >>> def discount(update, state, view):
    ...     staleness.append(update.staleness)
    ...     return update.replace(weight=1 / (1 + update.staleness)), state
    >>> method = tarry.Method("discounted", correct=tarry.Correct(discount, only_scales=True))
    >>> result = tarry.run(method, "digits", clients=3, delay=[1, 2, 5], updates=8)
    >>> staleness
    [0, 1, 1, 0, 1, 1, 6, 1]
    """

    only_scales: bool = False  # it changes the update's weight and nothing else


@dataclass(frozen=True, repr=False)
class Aggregate(Part[Update | None, Update | None]):
    """Decide when the server steps, and by which update. The input is None when a visit was lost.

    >>> def pairs(update, waiting, view):
    ...     if update is None or waiting is None:
    ...         return None, waiting or update
    ...     return update.replace(delta=update.delta + waiting.delta), None
    >>> method = tarry.Method("pairs", aggregate=tarry.Aggregate(pairs))
    >>> result = tarry.run(method, "digits", clients=3, updates=10)
    >>> result.updates, result.rounds
    (10, 5)
    """

    #: called after the last arrival of an instant; an update makes the server step
    on_instant_end: Callable[[Any, ServerView], tuple[Update | None, Any]] | None = None
    #: the time at which to call `on_instant_end` even if no update arrives; inf: never
    next_wakeup: Callable[[Any, ServerView], float] | None = None
    dropped_extras: frozenset[str] = frozenset()  # the extras that the update passed on does not carry
    keeps_staleness: bool = False  # the update passed on has the largest staleness of those it stands for
    steps_at_rate: bool = False  # the update passed on is at the clients' learning rate of the moment (view.rate())


class MixStep(NamedTuple):
    """The formula of a step W ← W + β s(τ) (W_m − W)."""

    beta: float
    decay: Callable[[int], float]  # s


@dataclass(frozen=True, repr=False)
class Step(Part[Update, Tensor]):
    """Compute the new global weights from an update.

    >>> def half(update, state, view):
    ...     return view.weights + 0.5 * update.delta, state
    >>> method = tarry.Method("careful", step=tarry.Step(half))
    >>> tarry.run(method, "digits", clients=3, updates=10).rounds
    10
    """

    with_geodesic: Callable[[Geodesic], Step] | None = None  # the same step along another geodesic
    formula: MixStep | None = None  # for parts that compute the new weights a second time
    with_schedule: Callable[[RateSchedule], Step] | None = None  # the same step with a schedule of its learning rate


@dataclass(frozen=True, repr=False)
class Reply(Part[Update, NextStart | None]):
    """Compute the client's next start from its update.

    >>> starts = []
    >>> def own_weights(update, state, view):
    ...     starts.append(update.ticket.from_reply)
    ...     return tarry.NextStart(update.local), state
    >>> method = tarry.Method("alone", reply=tarry.Reply(own_weights))
    >>> result = tarry.run(method, "digits", clients=2, delay=[1, 1], updates=4)
    >>> starts
    [False, False, True, True]
    """


@dataclass(frozen=True, repr=False)
class Dispatch(Part[IdleClients, list[int]]):
    """Choose the idle clients that get work now.

    >>> def one_at_a_time(idle, state, view):
    ...     return idle.draw(0 if view.in_flight else 1, view), state
    >>> method = tarry.Method("serial", dispatch=tarry.Dispatch(one_at_a_time))
    >>> tarry.run(method, "digits", clients=4, delay=[10, 10, 10, 10], updates=6).virtual_time
    60.0
    """

    observe: Callable[[Update, Any, ServerView], Any] | None = (
        None  # called with every accepted update first; returns a state
    )


def stateless(fn: Callable[[X, ServerView], Y]) -> Part[X, Y]:
    """Return a part without a state, for any place, from a function of (x, view).

    >>> clip = tarry.stateless(lambda update, view: update.replace(delta=update.delta.clamp(-0.1, 0.1)))
    >>> method = tarry.methods["fedasync"]().compose(correct=clip, name="clipped")
    >>> tarry.run(method, "digits", clients=3, updates=5).method
    'clipped'
    """
    return Part(lambda x, state, view: (fn(x, view), state))


def _keep(update: Update, state: None, _: ServerView) -> tuple[Update, None]:
    return update, state


def _pass_on(update: Update | None, state: None, _: ServerView) -> tuple[Update | None, None]:
    return update, state


def _add(update: Update, state: None, view: ServerView) -> tuple[Tensor, None]:
    return torch.add(view.weights, view.displacement(update), alpha=update.weight), state


def _send_global(_: Update, state: None, __: ServerView) -> tuple[NextStart | None, None]:
    return None, state


def _refill(roster: IdleClients, state: None, view: ServerView) -> tuple[list[int], None]:
    return roster.draw(roster.concurrency - view.in_flight, view), state


KEEP = Correct(_keep)  # no correction
EACH_ARRIVAL = Aggregate(_pass_on)  # the server steps at each arrival
ADD = Step(_add)  # W ← W + Δ
SEND_GLOBAL = Reply(_send_global)  # the client gets the global weights of the moment
REFILL = Dispatch(_refill)  # random idle clients, up to the concurrency
