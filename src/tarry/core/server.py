"""The server: hands out tickets, receives updates, and calls a method's parts in one order.

    hand_out(client) → Ticket          receive(number, trained) → Receipt          lost(number) → Receipt
    receive:  correct → aggregate → step → reply
    settle() → bool                    after the last arrival of an instant: whether the method made a step
    wakes() → time                     the time at which to call `settle` even if no update arrives

It knows no clock and no network; a simulator and a deployment drive it alike. Its whole state saves and loads as a
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
from .client_table import SpillPolicy
from .contracts import check_first_call, check_weights
from .idle_clients import IdleClients
from .layout import Layout
from .method import Method, RunLimits, ServerModel, ServerView
from .parts import PLACES
from .rng import Stream
from .state_tree import MemoryMeter, copy_tree, restore_records, tables
from .tickets import NOTHING, LocalResult, NextStart, Ticket, Update

__all__ = ["Receipt", "Server"]

# A NamedTuple's constructor is a Python function; the event loop calls the tuple's, which is faster.
_make = tuple.__new__


class Receipt(NamedTuple):
    """The server's record of an arrival."""

    ticket: Ticket
    accepted: bool  # False: lost, or rejected because it was not finite
    stepped: bool  # the global weights changed
    staleness: int
    notes: dict[str, Any] | None = None  # diagnostics; None: they are not collected


class Server:
    """The state of a method in a run: global weights, tickets, clients' starts, states of the parts."""

    def __init__(
        self,
        method: Method,
        weights: Tensor,
        *,
        layout: Layout,
        n_clients: int,
        seed: int,
        limits: RunLimits = RunLimits(),  # noqa: B008 - a constant
        model: ServerModel | None = None,
        diagnose: bool = False,
        spill: SpillPolicy = SpillPolicy(),  # noqa: B008 - a constant
    ):
        self.method, self.layout, self.n_clients = method, layout, n_clients
        self._limits, self._model, self._diagnose, self._spill = limits, model, diagnose, spill
        self._stream = rng.key(seed, Stream.DISPATCH)
        self.weights = weights
        self.version = 0  # steps made
        self.numbers = 0  # tickets written
        self.decisions = 0  # decisions taken, for the keys of random draws
        self.accepted = 0  # updates
        self.busy_since = 0.0  # the time since which at least one client has been training without a break
        self.visits = array("q", [0]) * n_clients
        self.tickets: dict[int, Ticket] = {}
        self.starts: dict[int, NextStart] = {}
        self.state: dict[str, Any] = {p: getattr(method, p).init(weights) for p in PLACES}
        self._attach_tables()
        self._offers = [(p, offer) for p in PLACES if (offer := getattr(method, p).offer) is not None]
        self._apply = check_first_call(method)
        self._observe = method.dispatch.observe
        self._both = None if method.step_and_reply is None else method.step_and_reply.apply
        self._remembers = any(s is not None for s in self.state.values())
        self.step_notes: dict[str, Any] | None = None  # diagnostics of the last step between arrivals
        self.meter = MemoryMeter()
        self.meter.hold(weights)

    def select_clients(self, roster: IdleClients, time: float) -> list[int]:
        """Return the clients that get work now, from the dispatch part; it takes them out of the roster."""
        clients: list[int]
        clients, self.state["dispatch"] = self._apply["dispatch"](roster, self.state["dispatch"], self._next_view(time))
        return clients

    @property
    def output_weights(self) -> Tensor:
        """The weights that are evaluated, and saved at the end."""
        compute = self.method.output_weights
        if compute is None:
            return self.weights
        return check_weights(self.method, "output_weights", compute(self.weights, self.state), self.weights)

    def hand_out(self, client: int, time: float) -> Ticket:
        """Return a ticket with the client's own start, else with offered weights, else with the global weights."""
        number, visit, view = self.numbers, self.visits[client], self.weights
        self.numbers = number + 1
        self.visits[client] = visit + 1
        if not self.tickets:
            self.busy_since = time
        own = self.starts.pop(client, None)
        if own is not None and not self._offers:  # the ledger's hold goes from the start to the ticket
            assert own.anchor is not None
            ticket = Ticket(number, client, visit, own.version, time, own.weights, own.anchor, own.payload, True)
        elif not self._offers:
            self.meter.hold(view)
            ticket = _make(Ticket, (number, client, visit, self.version, time, view, view, NOTHING, False))
        else:
            ticket = self._with_offers(number, client, visit, time, own)
        self.tickets[number] = ticket
        return ticket

    def _with_offers(self, number: int, client: int, visit: int, time: float, own: NextStart | None) -> Ticket:
        weights, payload, moment = self.weights, dict(own.payload) if own else {}, self._view(time)
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
        """Return the weights that the client would be sent now."""
        own, weights = self.starts.get(client), self.weights
        if own is not None:
            return own.weights
        for part, make in self._offers:
            offer = make(client, self.state[part], self._view(self.busy_since))
            weights = weights if offer is None or offer.weights is None else offer.weights
        return weights

    def receive(self, number: int, trained: LocalResult, time: float) -> Receipt:
        """Process the result of a ticket. A result that is not finite is rejected: the visit counts as lost."""
        if not trained.finite:
            return self.lose(number, time)
        ticket = self.tickets.pop(number)
        staleness = self.version - ticket.version
        delta, n_examples, n_steps, loss, _, extras, _, notes = trained
        update = _make(Update, (ticket, delta, n_examples, n_steps, staleness, loss, 1.0, extras, None))
        self.accepted += 1
        view, state, apply = self._next_view(time), self.state, self._apply
        if self._diagnose:
            globals_ = len({id(t.anchor) for t in self.tickets.values()})
            own = {k: v.tolist() for k, v in notes.items()}
            angles = {} if "difference" in self.method.local.uploads else _alignment(update, view)
            view = view._replace(notes={**own, **angles, "past_globals": globals_})
        if self._observe is not None:
            state["dispatch"] = self._observe(update, state["dispatch"], view)
        corrected, state["correct"] = apply["correct"](update, state["correct"], view)
        pooled, state["aggregate"] = apply["aggregate"](corrected, state["aggregate"], view)
        stepped, start = self._step_and_reply(update, pooled, view)
        if start is not None:
            self._put(ticket.client, NextStart(start.weights, start.payload, self.weights, self.version))
        self._release(ticket)
        if self._remembers:
            self.meter.observe(state)
        return _make(Receipt, (ticket, True, stepped, staleness, view.notes))

    def end_instant(self, time: float) -> bool:
        """Call the aggregate's `on_instant_end`, after an instant's last arrival; return whether it made a step."""
        on_instant_end = self.method.aggregate.on_instant_end
        if on_instant_end is None:
            return False
        view = self._next_view(time)
        if self._diagnose:
            view = view._replace(notes={})
        pooled, self.state["aggregate"] = on_instant_end(self.state["aggregate"], view)
        stepped = self._step(pooled, view)
        self.step_notes = view.notes
        if self._remembers:
            self.meter.observe(self.state)
        return stepped

    def next_wakeup(self, time: float) -> float:
        """Return the time at which to call `settle` even if no update arrives; inf while no ticket is out."""
        next_wakeup = self.method.aggregate.next_wakeup
        if next_wakeup is None or not self.tickets:
            return inf
        return next_wakeup(self.state["aggregate"], self._view(time))

    def lose(self, number: int, time: float) -> Receipt:
        """Process the loss of a ticket. A client that had a start of its own gets the same start again."""
        ticket = self.tickets.pop(number)
        if ticket.from_reply:
            self._put(ticket.client, NextStart(ticket.sent, ticket.payload, ticket.anchor, ticket.version))
        staleness = self.version - ticket.version
        view = self._next_view(time)
        pooled, self.state["aggregate"] = self._apply["aggregate"](None, self.state["aggregate"], view)
        stepped = self._step(pooled, view)
        self._release(ticket)
        return Receipt(ticket, False, stepped, staleness)

    def _attach_tables(self) -> None:
        for name, table in tables(self.state, "server"):
            table.attach(self._spill, name, self.weights.device)

    def close(self) -> None:
        """Close the tables of clients at the end of a run."""
        for _, table in tables(self.state):
            table.close()

    def _step_and_reply(self, update: Update, pooled: Update | None, view: ServerView) -> tuple[bool, NextStart | None]:
        """Call the step and the reply, or what the method computes both with if the step is by this very update."""
        both = self._both(update, view) if self._both is not None and pooled is update else None
        if both is not None:
            weights, start = both
            self._replace_global(weights)
            return True, start
        stepped = self._step(pooled, view)
        start, self.state["reply"] = self._apply["reply"](update, self.state["reply"], view)
        return stepped, start

    def _step(self, pooled: Update | None, view: ServerView) -> bool:
        if pooled is None:
            return False
        weights, self.state["step"] = self._apply["step"](pooled, self.state["step"], view)
        if weights.dtype is not self.weights.dtype:  # a part is checked at its first call alone
            check_weights(self.method, "step", weights, self.weights)
        self._replace_global(weights)
        return True

    def _replace_global(self, weights: Tensor) -> None:
        self.meter.hold(weights)
        self.meter.release(self.weights)
        self.weights = weights
        self.version += 1

    def _next_view(self, time: float) -> ServerView:
        """Return the view for a new decision, which has its own random key."""
        self.decisions += 1
        return self._view(time)

    def _view(self, time: float) -> ServerView:
        """Return the view without a new decision: no random key is used up."""
        return _make(
            ServerView,
            (
                self.weights,
                self.layout,
                self.version,
                time,
                len(self.tickets),
                self.n_clients,
                self._stream,
                self.decisions,
                self.accepted,
                self._limits,
                self._model,
                None,
                self.busy_since,
            ),
        )

    def _put(self, client: int, start: NextStart) -> None:
        self.starts[client] = start
        self._hold(start.weights, start.anchor, start.payload)

    def _hold(self, weights: Tensor, anchor: Tensor | None, payload: Mapping[str, Tensor]) -> None:
        self.meter.hold(weights)
        if anchor is not None and anchor is not weights:
            self.meter.hold(anchor)
        for tensor in payload.values():
            self.meter.hold(tensor)

    def _release(self, ticket: Ticket) -> None:
        self._let_go(ticket.sent, ticket.anchor, ticket.payload)

    def _let_go(self, weights: Tensor, anchor: Tensor | None, payload: Mapping[str, Tensor]) -> None:
        self.meter.release(weights)
        if anchor is not None and anchor is not weights:
            self.meter.release(anchor)
        if payload:
            for tensor in payload.values():
                self.meter.release(tensor)

    def save(self) -> dict[str, Any]:
        """Return the whole state as a plain record."""
        return {
            "weights": self.weights,
            "version": self.version,
            "numbers": self.numbers,
            "moments": self.decisions,
            "accepted": self.accepted,
            "since": self.busy_since,
            "visits": torch.tensor(self.visits),
            "tickets": [_plain(t) for t in self.tickets.values()],
            "starts": {c: _plain(s) for c, s in self.starts.items()},
            "state": copy_tree(self.state),
            "peak": self.meter.peak,
        }

    def snapshot(self) -> dict[str, Any]:
        """Return a state for `restore`. It shares its tensors with the server.

        It holds the weights alone if tables are in files, whose rows are overwritten.
        """
        if any(table.is_in_file for _, table in tables(self.state)):
            return {"weights": self.weights, "numbers": self.numbers}
        return self.save()

    def restore(self, saved: Mapping[str, Any], time: float) -> list[Ticket]:
        """Return to a snapshot, as a step of the server. Return the tickets handed out since, which are void.

        Visits that have ended since, and were under way at the snapshot, count as lost. Counters go on, so that no
        number, version or random key is used twice.
        """
        void = [ticket for ticket in self.tickets.values() if ticket.number >= saved["numbers"]]
        if "state" not in saved:
            for ticket in void:
                self.lose(ticket.number, time)
            self._replace_global(saved["weights"])
            return void
        under_way, version = self.tickets, self.version
        numbers, decisions, accepted = self.numbers, self.decisions, self.accepted
        busy_since, visits = self.busy_since, self.visits
        self.load({**saved, "peak": self.meter.peak})
        self.numbers, self.decisions, self.accepted, self.version = numbers, decisions, accepted, version + 1
        self.busy_since, self.visits = busy_since, visits
        for number in [n for n in self.tickets if n not in under_way]:
            self.lose(number, time)
        return void

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore the state that `save` returned."""
        self.weights, self.version = saved["weights"], saved["version"]
        self.numbers, self.decisions, self.accepted = saved["numbers"], saved["moments"], saved["accepted"]
        self.busy_since = saved["since"]
        self.visits = array("q", saved["visits"].tolist())
        self.tickets = {t["number"]: Ticket(**t) for t in saved["tickets"]}
        self.starts = {c: NextStart(**s) for c, s in saved["starts"].items()}
        self.state = restore_records(saved["state"], self.state)
        self._attach_tables()
        self.meter = MemoryMeter(peak=saved["peak"])
        self.meter.hold(self.weights)
        for t in self.tickets.values():
            self._hold(t.sent, t.anchor, t.payload)
        for s in self.starts.values():
            self._hold(s.weights, s.anchor, s.payload)


def _alignment(update: Update, view: ServerView) -> dict[str, Any]:
    """Return diagnostics of the angle between an update and the drift of the global since its hand-out.

    The cosine is given for the whole vector and layer by layer. Its absolute value is the share of a vector that a
    projection onto the other removes; below 0 the two conflict. Without a drift there are no diagnostics.
    """
    layout = view.layout
    drift, delta = layout.params(view.weights - update.ticket.anchor), layout.params(update.delta)
    stretches = [slice(0, layout.n_params), *layout.layer_slices]
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


def _plain(x: Ticket | NextStart) -> dict[str, Any]:
    return {**x._asdict(), "payload": dict(x.payload)}
