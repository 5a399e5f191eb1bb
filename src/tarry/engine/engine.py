"""Event engine: the order of work at one instant, and the counters of a run. Simulator and deployment both drive it.

    arrivals (by ticket number) → step of a server that works in epochs → joins and leaves → hand-outs

A client that is handed a ticket at an instant therefore starts from all updates of that instant. The engine knows no
clock, no network and no training: the same calls with the same times give the same run to the bit.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any

from torch import Tensor

from ..core.events import Event, EventKind
from ..core.idle_clients import IdleClients
from ..core.server import Receipt, Server
from ..core.tickets import LocalResult, Ticket
from .budget import Budget
from .diagnostics import DiagnosticsLog

__all__ = ["Change", "Engine", "Handout", "total_bytes"]

Change = tuple[int, bool]  # client; True: it joins, False: it leaves
Handout = tuple[Ticket, float | None]  # seconds of the visit; None where they are not known in advance
#: seconds of a client's next visit (client, visit); None: the client has left for good
Duration = Callable[[int, int], float | None]


class Engine:
    """A server, its idle clients and the counters of a run.

    `stop_reason` says why the run is over: "updates", "rounds" or "target", which the engine finds itself, or what the
    caller sets ("time", "stalled"). It is empty until the run ends; the caller checks it after each call.
    """

    def __init__(
        self,
        server: Server,
        idle: IdleClients,
        budget: Budget,
        *,
        max_tickets: int = 1,
        diagnostics: DiagnosticsLog | None = None,
        listeners: Sequence[Callable[[Event], None]] = (),
    ):
        self.server, self.idle, self.budget, self.diagnostics = server, idle, budget, diagnostics
        self.max_tickets = max_tickets  # that a client may hold at a time
        self.tickets_held = array("q", [0]) * server.n_clients  # by client
        self._listeners = tuple(listeners)
        self.steps_between_arrivals = server.method.aggregate.on_instant_end is not None
        self._max_updates, self._max_rounds = budget.updates or inf, budget.rounds or inf
        self.model_bytes = server.weights.nbytes
        self.time = 0.0  # of the last instant
        self.in_instant = False  # arrivals of an instant are in, and its tickets are not handed out yet
        self.stop_reason = ""
        self.updates, self.lost, self.rejected = 0, 0, 0
        self.consecutive_rejections = 0  # since the last accepted update
        self.rejections_by_client = Counter[int]()
        self.bytes_up, self.bytes_down = 0, 0
        self.staleness = Counter[int]()
        self.curve: list[tuple[float, int, float | None, float | None]] = []  # time, updates, accuracy, loss
        self.scored_version = -1  # server version of the last score

    def begin(self, duration: Duration | None = None) -> list[Handout]:
        """Make the dispatch decision at time 0, which uses one random key even if no client is present."""
        return self._dispatch(duration)

    def accept(self, time: float, number: int, result: LocalResult, *, nbytes: int | None = None) -> Receipt:
        """Give the server the result for a ticket; a result that is not finite counts as rejected.

        `nbytes` is the size of the upload as measured; None computes it from the tensors.
        """
        if not self.in_instant or time != self.time:
            self._enter(time)
        receipt = self.server.receive(number, result, time)
        if not receipt.accepted:
            self._count_rejection(receipt)
            self._end_visit("rejected", receipt, result.loss)
            return receipt
        self.updates += 1
        self.consecutive_rejections = 0
        self.staleness[receipt.staleness] += 1
        if nbytes is None:
            nbytes = self.model_bytes + total_bytes(result.extras) if result.extras else self.model_bytes
        self.bytes_up += nbytes
        if self.diagnostics is not None:
            self.diagnostics.arrival(time, receipt.ticket.client, receipt.notes or {})
        self._end_visit("arrival", receipt, result.loss)
        return receipt

    def lose(self, time: float, number: int, *, rejected: bool = False) -> Receipt:
        """End a ticket without an update: it was lost, or (`rejected`) its result was not finite."""
        self._enter(time)
        receipt = self.server.lose(number, time)
        if rejected:
            self._count_rejection(receipt)
        else:
            self.lost += 1
        self._end_visit("rejected" if rejected else "lost", receipt, None)
        return receipt

    def end_instant(
        self, time: float, changes: Sequence[Change] = (), duration: Duration | None = None
    ) -> list[Handout]:
        """End the instant at `time`: step between arrivals, joins and leaves, hand-outs. Return the new tickets.

        Nothing is handed out where the step reaches the budget.
        """
        if not self.in_instant or time != self.time:
            self._enter(time)
        self.in_instant = False
        if self.steps_between_arrivals and self.server.end_instant(time):
            self._emit("step", stepped=True)
            if self.diagnostics is not None:
                self.diagnostics.record_notes(time, self.server.step_notes or {})
            if self.server.version >= self._max_rounds:
                self.stop_reason = "rounds"
                return []
        for client, joins in changes:
            if joins:
                self.idle.add(client)
            elif client in self.idle:
                self.idle.remove(client)
            self._emit("join" if joins else "leave", client=client)
        return self._dispatch(duration)

    def score(self, time: float, accuracy: float | None, loss: float | None) -> None:
        """Record the score of the output weights."""
        self.scored_version = self.server.version
        self.curve.append((time, self.updates, accuracy, loss))
        self._emit("evaluate", time, accuracy=accuracy, loss=loss)
        target = self.budget.target
        if target is not None and accuracy is not None and accuracy >= target:
            self.stop_reason = "target"

    def on_client_eval(self, time: float, client: int, metrics: dict[str, float]) -> None:
        """Report a client's own evaluation of the output weights as an event."""
        scores = {"accuracy": metrics.get("accuracy"), "loss": metrics.get("loss")}
        self._emit("evaluate", time, client=client, notes=metrics, **scores)

    def next_wakeup(self) -> float:
        """Return the time at which the server wants an instant even if nothing arrives; inf if it wants none."""
        return self.server.next_wakeup(self.time) if self.steps_between_arrivals else inf

    def changes_to(self, present: Collection[int]) -> list[Change]:
        """Return the leaves and joins after which only clients in `present` can be handed tickets."""
        leaves = [(c, False) for c in sorted(self.idle) if c not in present]
        joins = [c for c in sorted(present) if c not in self.idle and self.tickets_held[c] < self.max_tickets]
        return leaves + [(c, True) for c in joins]

    @property
    def is_unscored(self) -> bool:
        """Return whether the present version of the weights has no score."""
        return self.scored_version != self.server.version or not self.curve

    @property
    def has_stalled(self) -> bool:
        """Return whether so many updates in a row were rejected that training has diverged."""
        return self.consecutive_rejections >= max(100, 10 * self.server.n_clients)

    def save(self) -> dict[str, Any]:
        """Return what the simulator's and the deployment's records have in common; call this between instants."""
        return {
            **{key: getattr(self, name) for key, name in _SAVED.items()},
            "server": self.server.save(),
            "roster": self.idle.save(),
            "staleness": dict(self.staleness),
            "curve": [list(point) for point in self.curve],
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue from a saved record."""
        for key, name in _SAVED.items():
            setattr(self, name, saved[key])
        self.server.load(saved["server"])
        self.idle.load(saved["roster"])
        self.staleness = Counter(saved["staleness"])
        self.curve = [(t, u, a, loss) for t, u, a, loss in saved["curve"]]
        self.tickets_held = array("q", [0]) * self.server.n_clients
        for ticket in self.server.tickets.values():
            self.tickets_held[ticket.client] += 1

    def _enter(self, time: float) -> None:
        assert time > self.time or (self.in_instant and time == self.time), "instants follow one another"
        self.time, self.in_instant = time, True

    def _count_rejection(self, receipt: Receipt) -> None:
        self.rejected += 1
        self.consecutive_rejections += 1
        self.rejections_by_client[receipt.ticket.client] += 1

    def _end_visit(self, kind: EventKind, receipt: Receipt, loss: float | None) -> None:
        t = receipt.ticket
        self.tickets_held[t.client] -= 1
        if t.client not in self.idle:
            self.idle.add(t.client)
        if self._listeners:
            self._emit(
                kind,
                client=t.client,
                ticket=t.number,
                visit=t.visit,
                staleness=receipt.staleness,
                stepped=receipt.stepped,
                loss=loss,
                notes=receipt.notes,
            )
        if self.updates >= self._max_updates:
            self.stop_reason = "updates"
        elif self.server.version >= self._max_rounds:
            self.stop_reason = "rounds"

    def _dispatch(self, duration: Duration | None) -> list[Handout]:
        """Hand out tickets; decide again if a client has left for good, or if a client may hold several tickets."""
        handouts: list[Handout] = []
        again = True
        while again:
            again = False
            for client in self.server.select_clients(self.idle, self.time):
                seconds = None
                if duration is not None and (seconds := duration(client, self.server.visits[client])) is None:
                    again = True
                    self._emit("leave", client=client)
                    continue
                handouts.append((self._hand_out(client, seconds), seconds))
                again = again or self.max_tickets > 1
        return handouts

    def _hand_out(self, client: int, seconds: float | None) -> Ticket:
        ticket = self.server.hand_out(client, self.time)
        self.tickets_held[client] += 1
        if self.tickets_held[client] < self.max_tickets:
            self.idle.add(client)
        if self.diagnostics is not None and seconds is not None:
            self.diagnostics.hand_out(ticket, seconds)
        if self._listeners:
            self._emit("hand_out", client=client, ticket=ticket.number, visit=ticket.visit, seconds=seconds)
        return ticket

    def _emit(self, kind: EventKind, time: float | None = None, **fields: Any) -> None:
        at = self.time if time is None else time
        event = Event(kind, at, self.server.version, self.updates, self.server.weights, **fields)
        for listener in self._listeners:
            listener(event)


#: key of a saved record -> attribute; attributes may be renamed, keys may not
_SAVED = {
    "time": "time",
    "updates": "updates",
    "lost": "lost",
    "rejected": "rejected",
    "bytes_up": "bytes_up",
    "bytes_down": "bytes_down",
    "scored": "scored_version",
}


def total_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the memory that the tensors take."""
    return sum(t.nbytes for t in tensors.values())
