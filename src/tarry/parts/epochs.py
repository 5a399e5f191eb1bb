"""A server that works in epochs: it collects what comes back, and steps when the epoch is over.

An epoch is over when its length has passed, and at any instant that leaves nobody training. One that nobody came back
in goes on until somebody does. Who is back early waits; at the end all who wait are handed the new global. With
durations that are multiples of the length, a client of m lengths takes part in every m-th epoch. An epoch begins with
the end of the one before or, if nobody was training then, with the first work handed out.

What is kept from epoch to epoch is a plain record, the book, and a method's own business:

    begin(weights)                   → book
    take(update, book, late, now)    → book             late: not within the epoch it was handed out in
    close(book, now)                 → move, book       where the global is to go; None: nothing to go by yet
    offer(client, book, now)         → Offer | None     what is sent along at a hand-out

A move is a vector as `entry` makes it of an update: a displacement, and running statistics as they are. Who remembers
gradients, Δ/η_l, puts `per_rate` by and makes a move of it with `at_rate`, whatever has become of η_l since.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..core.client_table import Marks
from ..core.errors import BadInput
from ..core.idle_clients import Roster
from ..core.method import Now
from ..core.parts import Aggregate, Dispatch
from ..core.tickets import Offer, Update
from ..engine.clock import after
from .cached import as_update
from .manifold import CONTROL

__all__ = ["at_epoch_ends", "at_rate", "by_epochs", "ends", "entry", "per_rate"]

Book = Any


def entry(update: Update, now: Now) -> Tensor:
    """What of an update can be kept and averaged later: its displacement, and its own running statistics.

    A variance's displacement would mean nothing to a global that has moved on; the client's own value does.
    """
    n = now.layout.n_params
    delta = update.delta if update.weight == 1 else update.delta * update.weight
    return torch.cat([delta[:n], update.local[n:]]) if now.layout.stats else delta


def per_rate(entry: Tensor, update: Update, now: Now) -> Tensor:
    """An update's entry with its displacement over the rate that the client had, in terms of the first."""
    return _scaled(entry, 1 / now.rate(update.ticket.version), now)


def at_rate(entry: Tensor, now: Now) -> Tensor:
    """The entry with its displacement at the rate of work handed out now."""
    return _scaled(entry, now.rate(now.version), now)


def _scaled(entry: Tensor, share: float, now: Now) -> Tensor:
    """Running statistics know no rate."""
    if share == 1:
        return entry
    n = now.layout.n_params
    return torch.cat([entry[:n] * share, entry[n:]]) if now.layout.stats else entry * share


def by_epochs(
    length: float | None,
    *,
    begin: Callable[[Tensor], Book],
    take: Callable[[Update, Book, bool, Now], Book],
    close: Callable[[Book, Now], tuple[Tensor | None, Book]],
    offer: Callable[[int, Book, Now], Offer | None] | None = None,
) -> Aggregate:
    """An aggregate part that steps at the end of each epoch; length None = the fastest client's first visit so far.

    Losses count as somebody back: with what is in the book, the epoch ends all the same. While there is nothing to go
    by, it goes on.
    """
    if length is not None and not length > 0:
        raise BadInput(f"--method.epoch {length}: must be above 0, or none for the fastest client's first visit")

    def init(weights: Tensor) -> dict[str, Any]:
        return {
            "length": length,
            "seen": None if length is not None else Marks(),
            "began": 0.0,
            "back": False,
            **_NOTHING_YET,
            "book": begin(weights),
        }

    def apply(update: Update | None, state: dict[str, Any], now: Now) -> tuple[None, dict[str, Any]]:
        if update is None:
            return None, {**state, "back": True}
        client, lasts, seen = update.ticket.client, state["length"], state["seen"]
        if seen is not None and client not in seen:
            first = now.time - update.ticket.time
            lasts = first if lasts is None else min(lasts, first)
            seen[client] = True
        return None, {
            **state,
            "length": lasts,
            "back": True,
            "count": state["count"] + 1,
            "examples": state["examples"] + update.n_examples,
            "steps": state["steps"] + update.n_steps,
            "book": take(update, state["book"], update.staleness > 0, now),
        }

    def settle(state: dict[str, Any], now: Now) -> tuple[Update | None, dict[str, Any]]:
        if not state["back"] or (now.in_flight and now.time < wakes(state, now)):
            return None, state
        move, book = close(state["book"], now)
        if move is None:
            return None, {**state, "back": False}
        return _pooled(move, state, now), {**state, **_NOTHING_YET, "back": False, "began": now.time, "book": book}

    def wakes(state: dict[str, Any], now: Now) -> float:
        return ends(state["began"], state["length"], now) if state["back"] else inf

    told = None if offer is None else _of_the_book(offer)
    return Aggregate(apply, init, told, on_instant_end=settle, next_wakeup=wakes, dropped_extras=frozenset({CONTROL}))


def ends(began: float, length: float | None, now: Now) -> float:
    """When a spell of the server is over that began then, or with the first work handed out since; None: open."""
    return inf if length is None else after(max(began, now.since), length)


_NOTHING_YET: dict[str, Any] = {"count": 0, "examples": 0, "steps": 0}


def _of_the_book(offer: Callable[[int, Book, Now], Offer | None]) -> Callable[[int, Any, Now], Offer | None]:
    return lambda client, state, now: offer(client, state["book"], now)


def _pooled(move: Tensor, state: dict[str, Any], now: Now) -> Update:
    """The move as an update of the moment: from the global's statistics to those given."""
    n = now.layout.n_params
    delta = torch.cat([move[:n], move[n:] - now.weights[n:]]) if now.layout.stats else move
    return as_update(delta, now, state["examples"], state["steps"])


def at_epoch_ends() -> Dispatch:
    """Refill to the concurrency asked for once the global has stepped, or nobody is training; else all wait."""

    def apply(roster: Roster, last: dict[str, Any], now: Now) -> tuple[list[int], dict[str, Any]]:
        # asked again at the same instant: somebody picked has left for good, and another gets the place
        if now.in_flight and now.version == last["version"] and now.time != last["time"]:
            return [], last
        return roster.draw(roster.limit - now.in_flight, now), {"version": now.version, "time": now.time}

    return Dispatch(apply, lambda _: {"version": -1, "time": -1.0})
