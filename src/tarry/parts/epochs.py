"""A server that works in epochs: it collects what comes back, and steps when the epoch is over.

An epoch is over when its length has passed, and at any instant that leaves nobody training. One that nobody came back
in goes on until somebody does. Who is back early waits; at the end all who wait are handed the new global. With
durations that are multiples of the length, a client of m lengths takes part in every m-th epoch. An epoch begins with
the end of the one before or, if nobody was training then, with the first work handed out.

What a method keeps from epoch to epoch, and what it makes of it, is an `EpochServer`. Its moves are vectors such as
`storable` makes of updates: a displacement, and running statistics as they are. A method that remembers gradients,
Δ/η_l, keeps them `per_rate` and makes a move of them with `at_rate`, whatever has become of η_l since.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..core.client_table import Marks
from ..core.errors import BadInput
from ..core.idle_clients import Roster
from ..core.method import Now
from ..core.parts import Aggregate, Dispatch
from ..core.state_tree import StateRecord
from ..core.tickets import NOTHING, Offer, Update
from ..engine.clock import add_seconds
from .cached import as_update
from .manifold import CONTROL

__all__ = ["EpochServer", "EpochState", "at_epoch_ends", "at_rate", "ends", "epoch_aggregate", "per_rate", "storable"]


class EpochServer(ABC):
    """What a method does with the updates of an epoch. Its state is a plain record, and its own business."""

    @property
    def offers(self) -> bool:
        """Whether clients are sent a payload."""
        return False

    @abstractmethod
    def init(self, weights: Tensor) -> Any:
        """Return the state at the beginning of the run."""

    @abstractmethod
    def on_update(self, update: Update, late: bool, state: Any, now: Now) -> Any:
        """Return the state with this update. `late`: it was handed out in an earlier epoch."""

    @abstractmethod
    def end_epoch(self, state: Any, now: Now) -> tuple[Tensor | None, Any]:
        """Return where the global is to go (None: nothing to go by yet, the epoch goes on), and the next state."""

    def payload(self, client: int, state: Any) -> Mapping[str, Tensor]:  # noqa: ARG002 - what servers override
        """Return what a client is sent beside the global."""
        return NOTHING


@dataclass(frozen=True)
class EpochState(StateRecord):
    """The state of the aggregate part; `book` is the method's own."""

    length: float | None  # of an epoch (s); None: no client has come back yet
    seen: Marks | None  # clients whose first visit was timed; None: the length was given
    began: float  # when the epoch began (s)
    back: bool  # a visit has ended since, with an update or without one
    count: int  # updates in this epoch
    examples: int  # behind them
    steps: int  # behind them
    book: Any

    def next(self, **changes: Any) -> EpochState:
        """Return the state at the beginning of another epoch."""
        return replace(self, count=0, examples=0, steps=0, back=False, **changes)


def storable(update: Update, now: Now) -> Tensor:
    """Return what of an update can be kept and averaged later: its displacement, and its own running statistics.

    A variance's displacement would mean nothing to a global that has moved on; the client's own value does.
    """
    n = now.layout.n_params
    delta = update.delta if update.weight == 1 else update.delta * update.weight
    return torch.cat([delta[:n], update.local[n:]]) if now.layout.stats else delta


def per_rate(entry: Tensor, update: Update, now: Now) -> Tensor:
    """Return an update's entry with its displacement over the rate that the client had, in terms of the first."""
    return _scaled(entry, 1 / now.rate(update.ticket.version), now)


def at_rate(entry: Tensor, now: Now) -> Tensor:
    """Return the entry with its displacement at the rate of work handed out now."""
    return _scaled(entry, now.rate(now.version), now)


def _scaled(entry: Tensor, share: float, now: Now) -> Tensor:
    """Running statistics know no rate."""
    if share == 1:
        return entry
    n = now.layout.n_params
    return torch.cat([entry[:n] * share, entry[n:]]) if now.layout.stats else entry * share


def epoch_aggregate(length: float | None, server: EpochServer) -> Aggregate:
    """Return an aggregate part that steps at the end of each epoch.

    Length None: as long as the fastest client's first visit so far. A lost visit counts as a client that is back: the
    epoch ends, and the step is by what is in the state.
    """
    if length is not None and not length > 0:
        raise BadInput(f"--method.epoch {length}: must be above 0, or none for the fastest client's first visit")

    def init(weights: Tensor) -> EpochState:
        seen = None if length is not None else Marks()
        return EpochState(length, seen, 0.0, False, 0, 0, 0, server.init(weights))

    def apply(update: Update | None, state: EpochState, now: Now) -> tuple[None, EpochState]:
        if update is None:
            return None, replace(state, back=True)
        client, lasts, seen = update.ticket.client, state.length, state.seen
        if seen is not None and client not in seen:
            first = now.time - update.ticket.time
            lasts = first if lasts is None else min(lasts, first)
            seen[client] = True
        return None, EpochState(
            lasts,
            seen,
            state.began,
            back=True,
            count=state.count + 1,
            examples=state.examples + update.n_examples,
            steps=state.steps + update.n_steps,
            book=server.on_update(update, update.staleness > 0, state.book, now),
        )

    def on_instant_end(state: EpochState, now: Now) -> tuple[Update | None, EpochState]:
        if not state.back or (now.in_flight and now.time < next_wakeup(state, now)):
            return None, state
        move, book = server.end_epoch(state.book, now)
        if move is None:
            return None, replace(state, back=False)
        return _as_update(move, state, now), state.next(began=now.time, book=book)

    def next_wakeup(state: EpochState, now: Now) -> float:
        return ends(state.began, state.length, now) if state.back else inf

    def offer(client: int, state: EpochState, _: Now) -> Offer:
        return Offer(server.payload(client, state.book))

    return Aggregate(
        apply,
        init,
        offer if server.offers else None,
        on_instant_end=on_instant_end,
        next_wakeup=next_wakeup,
        dropped_extras=frozenset({CONTROL}),
    )


def ends(began: float, length: float | None, now: Now) -> float:
    """Return when a span is over that began then, or with the first work handed out since; length None: never."""
    return inf if length is None else add_seconds(max(began, now.since), length)


def _as_update(move: Tensor, state: EpochState, now: Now) -> Update:
    """Return the move as an update of the moment: from the global's statistics to those given."""
    n = now.layout.n_params
    delta = torch.cat([move[:n], move[n:] - now.weights[n:]]) if now.layout.stats else move
    return as_update(delta, now, state.examples, state.steps)


def at_epoch_ends() -> Dispatch:
    """Refill to the concurrency once the global has stepped, or no client is training; until then all wait."""

    def apply(roster: Roster, last: dict[str, Any], now: Now) -> tuple[list[int], dict[str, Any]]:
        # called again at the same instant: a client that was picked has left for good, and another gets the place
        if now.in_flight and now.version == last["version"] and now.time != last["time"]:
            return [], last
        return roster.draw(roster.limit - now.in_flight, now), {"version": now.version, "time": now.time}

    return Dispatch(apply, lambda _: {"version": -1, "time": -1.0})
