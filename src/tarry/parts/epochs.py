"""Server parts for methods that step once per epoch: collect updates, and step when the epoch ends.

An epoch ends when its length has passed, and at any instant at which no client is training any more. An epoch without
any update continues until one arrives. Clients that return early wait; at the end all waiting clients get the new
global. If durations are multiples of the length, a client with visits of m lengths takes part in every m-th epoch. An
epoch begins at the end of the previous one or, if no client was training then, with the next hand-out.

An `EpochServer` defines what a method keeps between epochs and how it steps. Its steps are vectors in the form that
`storable` gives updates: a displacement, followed by the running statistics themselves. A method that caches gradients,
Δ/η_l, stores them with `per_rate` and converts them back with `at_rate`, so that a change of η_l in between counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.client_table import ClientScalars
from ..core.errors import BadInput
from ..core.idle_clients import IdleClients
from ..core.method import ServerView
from ..core.parts import Aggregate, Dispatch
from ..core.state_tree import StateRecord
from ..core.tickets import CONTROL, NOTHING, TicketExtras, Update
from ..engine.clock import add_seconds
from .cached import as_update

__all__ = ["EpochServer", "EpochState", "at_epoch_ends", "at_rate", "ends", "epoch_aggregate", "per_rate", "storable"]


class EpochServer(ABC):
    """Base of methods that step once per epoch: what they do with its updates. Each has its own type of state."""

    steps_at_rate: ClassVar[bool] = False  # its steps are at the clients' learning rate of the moment (`at_rate`)

    @property
    def offers(self) -> bool:
        """Return whether clients are sent a payload."""
        return False

    @abstractmethod
    def init(self, weights: Tensor) -> Any:
        """Return the state at the beginning of the run."""

    @abstractmethod
    def on_update(self, update: Update, late: bool, state: Any, view: ServerView) -> Any:
        """Return the state with this update. `late`: it was handed out in an earlier epoch."""

    @abstractmethod
    def end_epoch(self, state: Any, view: ServerView) -> tuple[Tensor | None, Any]:
        """Return the next global weights (None: there is no update yet, so the epoch continues), and the next state."""

    def payload(self, client: int, state: Any) -> Mapping[str, Tensor]:  # noqa: ARG002 - what servers override
        """Return what a client is sent beside the global."""
        return NOTHING


@dataclass(frozen=True)
class EpochState(StateRecord):
    """The state of the aggregate part; `book` is the method's own."""

    length: float | None  # of an epoch (s); None: no client has come back yet
    seen: ClientScalars | None  # clients whose first visit was timed; None: the length was given
    began: float  # when the epoch began (s)
    back: bool  # a visit has ended since, with an update or without one
    count: int  # updates in this epoch
    examples: int  # behind them
    steps: int  # behind them
    book: Any

    def next(self, **changes: Any) -> EpochState:
        """Return the state at the beginning of another epoch."""
        return replace(self, count=0, examples=0, steps=0, back=False, **changes)


def storable(update: Update, view: ServerView) -> Tensor:
    """Return what of an update can be kept and averaged later: its displacement, and its own running statistics.

    A variance's displacement would mean nothing to a global that has moved on; the client's own value does.
    """
    n = view.layout.n_params
    delta = update.delta if update.weight == 1 else update.delta * update.weight
    return torch.cat([delta[:n], update.local[n:]]) if view.layout.stats else delta


def per_rate(entry: Tensor, update: Update, view: ServerView) -> Tensor:
    """Return an update's entry with its displacement over the rate that the client had, in terms of the first."""
    return _scale(entry, 1 / view.rate(update.ticket), view)


def at_rate(entry: Tensor, view: ServerView) -> Tensor:
    """Return the entry with its displacement at the rate of work handed out now."""
    return _scale(entry, view.rate(), view)


def _scale(entry: Tensor, share: float, view: ServerView) -> Tensor:
    """Running statistics know no rate."""
    if share == 1:
        return entry
    n = view.layout.n_params
    return torch.cat([entry[:n] * share, entry[n:]]) if view.layout.stats else entry * share


def epoch_aggregate(length: float | None, server: EpochServer) -> Aggregate:
    """Return an aggregate part that steps at the end of each epoch.

    Length None: as long as the fastest client's first visit so far. A lost visit counts as a client that is back: the
    epoch ends, and the step is by what is in the state.
    """
    if length is not None and not length > 0:
        raise BadInput(f"--method.epoch {length}: must be above 0, or none for the fastest client's first visit")

    def init(weights: Tensor) -> EpochState:
        seen = None if length is not None else ClientScalars()
        return EpochState(length, seen, 0.0, False, 0, 0, 0, server.init(weights))

    def apply(update: Update | None, state: EpochState, view: ServerView) -> tuple[None, EpochState]:
        if update is None:
            return None, replace(state, back=True)
        client, lasts, seen = update.ticket.client, state.length, state.seen
        if seen is not None and client not in seen:
            first = view.time - update.ticket.time
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
            book=server.on_update(update, update.staleness > 0, state.book, view),
        )

    def on_instant_end(state: EpochState, view: ServerView) -> tuple[Update | None, EpochState]:
        if not state.back or (view.in_flight and view.time < next_wakeup(state, view)):
            return None, state
        move, book = server.end_epoch(state.book, view)
        if move is None:
            return None, replace(state, back=False)
        return _as_update(move, state, view), state.next(began=view.time, book=book)

    def next_wakeup(state: EpochState, view: ServerView) -> float:
        return ends(state.began, state.length, view) if state.back else inf

    def offer(client: int, state: EpochState, _: ServerView) -> TicketExtras:
        return TicketExtras(server.payload(client, state.book))

    return Aggregate(
        apply,
        init,
        offer if server.offers else None,
        on_instant_end=on_instant_end,
        next_wakeup=next_wakeup,
        dropped_extras=frozenset({CONTROL}),
        steps_at_rate=server.steps_at_rate,
    )


def ends(began: float, length: float | None, view: ServerView) -> float:
    """Return when a span is over that began then, or with the first work handed out since; length None: never."""
    return inf if length is None else add_seconds(max(began, view.busy_since), length)


def _as_update(move: Tensor, state: EpochState, view: ServerView) -> Update:
    """Return the move as an update of the moment: from the global's statistics to those given."""
    n = view.layout.n_params
    delta = torch.cat([move[:n], move[n:] - view.weights[n:]]) if view.layout.stats else move
    return as_update(delta, view, state.examples, state.steps)


def at_epoch_ends() -> Dispatch:
    """Refill to the concurrency once the global has stepped, or no client is training; until then all wait."""

    def apply(roster: IdleClients, last: dict[str, Any], view: ServerView) -> tuple[list[int], dict[str, Any]]:
        # called again at the same instant: a client that was picked has left for good, and another gets the place
        if view.in_flight and view.version == last["version"] and view.time != last["time"]:
            return [], last
        return roster.draw(roster.concurrency - view.in_flight, view), {"version": view.version, "time": view.time}

    return Dispatch(apply, lambda _: {"version": -1, "time": -1.0})
