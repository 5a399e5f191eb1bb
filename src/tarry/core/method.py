"""A method is a small frozen record of six parts; whoever drives the server runs the same record.

    local      LocalRule                                what a client does in a step
    correct    Update → Update                          staleness weights, delay correction
    aggregate  Update | None → Update | None            each arrival, buffer, round (out None = wait)
    step       Update → new global weights              add, mix, ...
    reply      Update → Start | None                    this client's next start (None = the opening)
    dispatch   Roster → clients                         who is handed work now

A server part is `init(weights) → state` and `part(x, state, now) → (out, state)`: output first, state second. State
is a plain record (tensors, numbers, text, lists, dicts), so every method checkpoints for free. Parts never write to
their inputs. `now` is the moment of the arrival, before anything changed.

A client without a start of its own (first contact, or a reply that made none) gets the method's `opening`: by default
the global weights of the moment of the hand-out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import rng
from .layout import Layout
from .local import LocalRule
from .roster import Roster
from .ticket import Start, Update

__all__ = ["Method", "Now", "Opening", "Part", "stateless"]

X = TypeVar("X")
Y = TypeVar("Y")


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
    return now.weights + now.moved(update)


def _the_global(_: Update, state: None, __: Now) -> tuple[Start | None, None]:
    return None, state


def _refill(roster: Roster, state: None, now: Now) -> tuple[list[int], None]:
    return roster.draw(roster.limit - now.in_flight, now), state


#: client, the states of all parts by name, now → what it is handed (None = the global)
Opening = Callable[[int, Mapping[str, Any], Now], Start | None]


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
    opening: Opening | None = None  # the start of a client whose last reply made none; None = the global at hand-out
