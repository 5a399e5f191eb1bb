"""The server: hands out tickets, receives updates, and runs a method's parts in one order.

    hand_out(client) → Ticket          receive(number, trained) → Receipt          lost(number) → Receipt
    receive:  correct → aggregate → step → reply

It knows no clock and no network: a simulator and a deployment drive it alike. Its whole state saves and loads as a
plain record.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from . import rng
from .client import Trained
from .layout import Layout
from .method import Method, Now
from .roster import Roster
from .ticket import Start, Ticket, Update
from .tree import Ledger

__all__ = ["Receipt", "Server"]

_PARTS = ("correct", "aggregate", "step", "reply", "dispatch")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an arrival."""

    ticket: Ticket
    accepted: bool  # False: lost on the way, or refused because it was not finite
    stepped: bool  # the global weights changed
    staleness: int


class Server:
    """A method at work on global weights."""

    def __init__(self, method: Method, weights: Tensor, *, layout: Layout, n_clients: int, seed: int):
        self.method, self.layout, self.n_clients, self.seed = method, layout, n_clients, seed
        self.weights = weights
        self.version = 0  # steps made
        self.numbers = 0  # tickets written
        self.moments = 0  # decisions taken, for the keys of random draws
        self.visits = array("q", [0]) * n_clients
        self.tickets: dict[int, Ticket] = {}
        self.starts: dict[int, Start] = {}
        self.state: dict[str, Any] = {p: getattr(method, p).init(weights) for p in _PARTS}
        self.ledger = Ledger()
        self.ledger.hold(weights)

    def pick(self, roster: Roster, time: float) -> list[int]:
        """Whom to hand work to now, by the method's dispatch part; the roster no longer counts them as idle."""
        return self._run("dispatch", roster, self._now(time))  # type: ignore[no-any-return]

    def hand_out(self, client: int, time: float) -> Ticket:
        """Write a ticket for a client: its own start if its last reply made one, else the global weights."""
        start = self.starts.pop(client, None)
        number, visit = self.numbers, self.visits[client]
        self.numbers += 1
        self.visits[client] += 1
        if start is None:
            ticket = Ticket(number, client, visit, self.version, time, self.weights, self.weights)
        else:
            self._release(start)
            anchor = self.weights if start.anchor is None else start.anchor
            ticket = Ticket(number, client, visit, start.version, time, start.weights, anchor, start.payload)
        self.tickets[number] = ticket
        self._hold(ticket)
        return ticket

    def receive(self, number: int, trained: Trained, time: float) -> Receipt:
        """Take in what came back for a ticket. Weights that are not finite are refused: the visit counts as lost."""
        ticket = self.tickets[number]
        if not bool(torch.isfinite(trained.delta.sum())):
            return self.lost(number, time)
        del self.tickets[number]
        staleness = self.version - ticket.version
        update = Update(
            ticket, trained.delta, trained.n_examples, trained.n_steps, staleness, trained.loss, extras=trained.extras
        )
        now = self._now(time)
        stepped = self._advance(self._run("correct", update, now), now)
        start = self._run("reply", update, now)
        if start is not None:
            self._put(ticket.client, Start(start.weights, start.payload, self.weights, self.version))
        self._release(ticket)
        self.ledger.watch(self.state)
        return Receipt(ticket, accepted=True, stepped=stepped, staleness=staleness)

    def lost(self, number: int, time: float) -> Receipt:
        """A ticket's work is gone. A client with a start of its own will get the same again."""
        ticket = self.tickets.pop(number)
        if ticket.sent is not ticket.anchor or ticket.payload:
            self._put(ticket.client, Start(ticket.sent, ticket.payload, ticket.anchor, ticket.version))
        stepped = self._advance(None, self._now(time))
        self._release(ticket)
        return Receipt(ticket, accepted=False, stepped=stepped, staleness=self.version - ticket.version)

    def _advance(self, update: Update | None, now: Now) -> bool:
        pooled = self._run("aggregate", update, now)
        if pooled is None:
            return False
        weights = self._run("step", pooled, now)
        self.ledger.hold(weights)
        self.ledger.release(self.weights)
        self.weights = weights
        self.version += 1
        return True

    def _run(self, part: str, x: Any, now: Now) -> Any:
        out, self.state[part] = getattr(self.method, part)(x, self.state[part], now)
        return out

    def _now(self, time: float) -> Now:
        self.moments += 1
        key = rng.key(self.seed, rng.Stream.DISPATCH, self.moments)
        return Now(self.weights, self.layout, self.version, time, len(self.tickets), self.n_clients, key)

    def _put(self, client: int, start: Start) -> None:
        self.starts[client] = start
        self._hold(start)

    def _hold(self, x: Ticket | Start) -> None:
        for tensor in _vectors(x):
            self.ledger.hold(tensor)

    def _release(self, x: Ticket | Start) -> None:
        for tensor in _vectors(x):
            self.ledger.release(tensor)

    def save(self) -> dict[str, Any]:
        """Everything, as a plain record."""
        return {
            "weights": self.weights,
            "version": self.version,
            "numbers": self.numbers,
            "moments": self.moments,
            "visits": torch.tensor(self.visits),
            "tickets": [_record(t) for t in self.tickets.values()],
            "starts": {c: _record(s) for c, s in self.starts.items()},
            "state": self.state,
            "peak": self.ledger.peak,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Take up where `save` left off."""
        self.weights, self.version = saved["weights"], saved["version"]
        self.numbers, self.moments = saved["numbers"], saved["moments"]
        self.visits = array("q", saved["visits"].tolist())
        self.tickets = {t["number"]: Ticket(**t) for t in saved["tickets"]}
        self.starts = {c: Start(**s) for c, s in saved["starts"].items()}
        self.state = saved["state"]
        self.ledger = Ledger(peak=saved["peak"])
        self.ledger.hold(self.weights)
        held: list[Ticket | Start] = [*self.tickets.values(), *self.starts.values()]
        for x in held:
            self._hold(x)


def _vectors(x: Ticket | Start) -> list[Tensor]:
    if isinstance(x, Ticket):
        return [x.sent, x.anchor, *x.payload.values()]
    return [x.weights, *([] if x.anchor is None else [x.anchor]), *x.payload.values()]


def _record(x: Ticket | Start) -> dict[str, Any]:
    return {f.name: getattr(x, f.name) for f in fields(x)}
