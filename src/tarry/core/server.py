"""The server: hands out tickets, receives updates, and runs a method's parts in one order.

    hand_out(client) → Ticket          receive(number, trained) → Receipt          lost(number) → Receipt
    receive:  correct → aggregate → step → reply
    settle() → bool                    after the last arrival of an instant: did the method step on that account
    wakes() → time                     when it wants to be asked to settle, whoever arrives

It knows no clock and no network: a simulator and a deployment drive it alike. Its whole state saves and loads as a
plain record.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import rng
from .client_table import Room
from .contracts import looked_at
from .idle_clients import Roster
from .layout import Layout
from .method import Horizon, Lab, Method, Now
from .rng import Stream
from .state_tree import Ledger, copied, tables
from .tickets import NOTHING, LocalResult, Start, Ticket, Update

__all__ = ["Receipt", "Server"]

# A NamedTuple's own constructor is a Python function; the event loop goes past it to the tuple's.
_make = tuple.__new__
_PARTS = ("correct", "aggregate", "step", "reply", "dispatch")


class Receipt(NamedTuple):
    """What became of an arrival."""

    ticket: Ticket
    accepted: bool  # False: lost on the way, or refused because it was not finite
    stepped: bool  # the global weights changed
    staleness: int
    notes: dict[str, Any] | None = None  # diagnostics, when they are asked for


class Server:
    """A method at work on global weights."""

    def __init__(
        self,
        method: Method,
        weights: Tensor,
        *,
        layout: Layout,
        n_clients: int,
        seed: int,
        horizon: Horizon = Horizon(),  # noqa: B008 - a constant
        lab: Lab | None = None,
        watch: bool = False,
        room: Room = Room(),  # noqa: B008 - a constant
    ):
        self.method, self.layout, self.n_clients = method, layout, n_clients
        self._horizon, self._lab, self._watch, self._room = horizon, lab, watch, room
        self._stream = rng.key(seed, Stream.DISPATCH)
        self.weights = weights
        self.version = 0  # steps made
        self.numbers = 0  # tickets written
        self.moments = 0  # decisions taken, for the keys of random draws
        self.accepted = 0  # updates
        self.since = 0.0  # somebody has been training all the time
        self.visits = array("q", [0]) * n_clients
        self.tickets: dict[int, Ticket] = {}
        self.starts: dict[int, Start] = {}
        self.state: dict[str, Any] = {p: getattr(method, p).init(weights) for p in _PARTS}
        self._move_in()
        self._offers = [(p, offer) for p in _PARTS if (offer := getattr(method, p).offer) is not None]
        self._apply = looked_at(method)
        self._hear = method.dispatch.hear
        self._remembers = any(s is not None for s in self.state.values())
        self.settled_notes: dict[str, Any] | None = None  # diagnostics of the last step between arrivals
        self.ledger = Ledger()
        self.ledger.hold(weights)

    def pick(self, roster: Roster, time: float) -> list[int]:
        """Whom to hand work to now, by the method's dispatch part; the roster no longer counts them as idle."""
        clients: list[int]
        clients, self.state["dispatch"] = self._apply["dispatch"](roster, self.state["dispatch"], self._now(time))
        return clients

    @property
    def answer(self) -> Tensor:
        """The weights the method answers with: what is tested, and kept at the end."""
        return self.weights if self.method.answer is None else self.method.answer(self.weights, self.state)

    def hand_out(self, client: int, time: float) -> Ticket:
        """Write a ticket: the client's own start if its last reply made one, else what is offered, else the global."""
        number, visit, now = self.numbers, self.visits[client], self.weights
        self.numbers = number + 1
        self.visits[client] = visit + 1
        if not self.tickets:
            self.since = time
        own = self.starts.pop(client, None)
        if own is not None and not self._offers:  # the ledger's hold goes from the start to the ticket
            assert own.anchor is not None
            ticket = Ticket(number, client, visit, own.version, time, own.weights, own.anchor, own.payload, True)
        elif not self._offers:
            self.ledger.hold(now)
            ticket = _make(Ticket, (number, client, visit, self.version, time, now, now, NOTHING, False))
        else:
            ticket = self._with_offers(number, client, visit, time, own)
        self.tickets[number] = ticket
        return ticket

    def _with_offers(self, number: int, client: int, visit: int, time: float, own: Start | None) -> Ticket:
        weights, payload, moment = self.weights, dict(own.payload) if own else {}, self._moment(time)
        for part, make in self._offers:
            offer = make(client, self.state[part], moment)
            if offer is not None:
                payload.update(offer.payload)
                weights = weights if offer.weights is None else offer.weights
        if own is None:
            ticket = Ticket(number, client, visit, self.version, time, weights, self.weights, payload)
        else:
            assert own.anchor is not None
            ticket = Ticket(number, client, visit, own.version, time, own.weights, own.anchor, payload, True)
        self._hold(ticket.sent, ticket.anchor, payload)
        if own is not None:
            self._let_go(own.weights, own.anchor, own.payload)
        return ticket

    def next_start(self, client: int) -> Tensor:
        """The weights that a client would be handed now."""
        own, weights = self.starts.get(client), self.weights
        if own is not None:
            return own.weights
        for part, make in self._offers:
            offer = make(client, self.state[part], self._moment(self.since))
            weights = weights if offer is None or offer.weights is None else offer.weights
        return weights

    def receive(self, number: int, trained: LocalResult, time: float) -> Receipt:
        """Take in what came back for a ticket. What is not finite is refused: the visit counts as lost."""
        if not trained.finite:
            return self.lost(number, time)
        ticket = self.tickets.pop(number)
        staleness = self.version - ticket.version
        delta, n_examples, n_steps, loss, _, extras, _, notes = trained
        update = _make(Update, (ticket, delta, n_examples, n_steps, staleness, loss, 1.0, extras))
        self.accepted += 1
        now, state, apply = self._now(time), self.state, self._apply
        if self._watch:
            globals_ = len({id(t.anchor) for t in self.tickets.values()})
            own = {k: v.tolist() for k, v in notes.items()}
            lies = {} if "difference" in self.method.local.gives else _alignment(update, now)
            now = now._replace(notes={**own, **lies, "past_globals": globals_})
        if self._hear is not None:
            state["dispatch"] = self._hear(update, state["dispatch"], now)
        corrected, state["correct"] = apply["correct"](update, state["correct"], now)
        stepped = self._advance(corrected, now)
        start, state["reply"] = apply["reply"](update, state["reply"], now)
        if start is not None:
            self._put(ticket.client, Start(start.weights, start.payload, self.weights, self.version))
        self._release(ticket)
        if self._remembers:
            self.ledger.watch(state)
        return _make(Receipt, (ticket, True, stepped, staleness, now.notes))

    def settle(self, time: float) -> bool:
        """All arrivals of an instant are in: a method whose server works in epochs may step now."""
        settle = self.method.aggregate.settle
        if settle is None:
            return False
        now = self._now(time)
        if self._watch:
            now = now._replace(notes={})
        pooled, self.state["aggregate"] = settle(self.state["aggregate"], now)
        stepped = self._step(pooled, now)
        self.settled_notes = now.notes
        if self._remembers:
            self.ledger.watch(self.state)
        return stepped

    def wakes(self, time: float) -> float:
        """The instant at which to settle even if nothing arrives; inf while nobody is training."""
        wakes = self.method.aggregate.wakes
        return inf if wakes is None or not self.tickets else wakes(self.state["aggregate"], self._moment(time))

    def lost(self, number: int, time: float) -> Receipt:
        """A ticket's work is gone. A client with a start of its own will get the same again."""
        ticket = self.tickets.pop(number)
        if ticket.own:
            self._put(ticket.client, Start(ticket.sent, ticket.payload, ticket.anchor, ticket.version))
        staleness = self.version - ticket.version
        stepped = self._advance(None, self._now(time))
        self._release(ticket)
        return Receipt(ticket, False, stepped, staleness)

    def _move_in(self) -> None:
        for name, table in tables(self.state, "server"):
            table.move_in(self._room, name, self.weights.device)

    def close(self) -> None:
        """The run is over: close the tables of clients."""
        for _, table in tables(self.state):
            table.close()

    def _advance(self, update: Update | None, now: Now) -> bool:
        state, apply = self.state, self._apply
        pooled, state["aggregate"] = apply["aggregate"](update, state["aggregate"], now)
        return self._step(pooled, now)

    def _step(self, pooled: Update | None, now: Now) -> bool:
        if pooled is None:
            return False
        weights, self.state["step"] = self._apply["step"](pooled, self.state["step"], now)
        self.ledger.hold(weights)
        self.ledger.release(self.weights)
        self.weights = weights
        self.version += 1
        return True

    def _now(self, time: float) -> Now:
        """The moment of a decision: its draws are its own."""
        self.moments += 1
        return self._moment(time)

    def _moment(self, time: float) -> Now:
        """A moment without a decision: looking at it disturbs no draw."""
        n, here = len(self.tickets), (self.weights, self.layout, self.version, time)
        fixed = (self.accepted, self._horizon, self._lab, None, self.since)
        return _make(Now, (*here, n, self.n_clients, self._stream, self.moments, *fixed))

    def _put(self, client: int, start: Start) -> None:
        self.starts[client] = start
        self._hold(start.weights, start.anchor, start.payload)

    def _hold(self, weights: Tensor, anchor: Tensor | None, payload: Mapping[str, Tensor]) -> None:
        self.ledger.hold(weights)
        if anchor is not None and anchor is not weights:
            self.ledger.hold(anchor)
        for tensor in payload.values():
            self.ledger.hold(tensor)

    def _release(self, ticket: Ticket) -> None:
        self._let_go(ticket.sent, ticket.anchor, ticket.payload)

    def _let_go(self, weights: Tensor, anchor: Tensor | None, payload: Mapping[str, Tensor]) -> None:
        self.ledger.release(weights)
        if anchor is not None and anchor is not weights:
            self.ledger.release(anchor)
        if payload:
            for tensor in payload.values():
                self.ledger.release(tensor)

    def save(self) -> dict[str, Any]:
        """Everything, as a plain record."""
        return {
            "weights": self.weights,
            "version": self.version,
            "numbers": self.numbers,
            "moments": self.moments,
            "accepted": self.accepted,
            "since": self.since,
            "visits": torch.tensor(self.visits),
            "tickets": [_plain(t) for t in self.tickets.values()],
            "starts": {c: _plain(s) for c, s in self.starts.items()},
            "state": copied(self.state),
            "peak": self.ledger.peak,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Take up where `save` left off."""
        self.weights, self.version = saved["weights"], saved["version"]
        self.numbers, self.moments, self.accepted = saved["numbers"], saved["moments"], saved["accepted"]
        self.since = saved["since"]
        self.visits = array("q", saved["visits"].tolist())
        self.tickets = {t["number"]: Ticket(**t) for t in saved["tickets"]}
        self.starts = {c: Start(**s) for c, s in saved["starts"].items()}
        self.state = copied(saved["state"])
        self._move_in()
        self.ledger = Ledger(peak=saved["peak"])
        self.ledger.hold(self.weights)
        for t in self.tickets.values():
            self._hold(t.sent, t.anchor, t.payload)
        for s in self.starts.values():
            self._hold(s.weights, s.anchor, s.payload)


def _alignment(update: Update, now: Now) -> dict[str, Any]:
    """How a client's update lies to what the others did meanwhile: the cosine, whole and layer by layer.

    Its absolute value is the share of one that a projection onto the other removes; below 0 the two conflict. Nothing
    is said of an update that met no drift.
    """
    layout = now.layout
    drift, delta = layout.params(now.weights - update.ticket.anchor), layout.params(update.delta)
    stretches = [slice(0, layout.n_params), *(b.at for b in layout.layers)]
    cosines = [torch.nn.functional.cosine_similarity(drift[at], delta[at], dim=0).item() for at in stretches]
    if not drift.any():
        return {}
    return {
        "cosine": cosines[0],
        "cosine_by_layer": cosines[1:],
        "removed_by_layer": [abs(c) for c in cosines[1:]],
        "opposed": 1.0 if cosines[0] < 0 else 0.0,
        "drift": drift.norm().item(),
    }


def _plain(x: Ticket | Start) -> dict[str, Any]:
    return {**x._asdict(), "payload": dict(x.payload)}
