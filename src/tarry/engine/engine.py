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
from types import MappingProxyType
from typing import Any

from torch import Tensor

from ..core.events import Event, EventKind
from ..core.idle_clients import IdleClients
from ..core.metric import CurvePoint
from ..core.rejections import Reason
from ..core.server import Receipt, Server
from ..core.tickets import LocalResult, Ticket
from .budget import Budget
from .diagnostics import DiagnosticsLog
from .early_stopping import EarlyStopping
from .gate import ACCEPTED, Gate, GateVerdict
from .model_monitor import ModelMonitor

__all__ = ["RESTORED", "Change", "Engine", "Handout", "total_bytes"]

Change = tuple[int, bool]  # client; True: it joins, False: it leaves
Handout = tuple[Ticket, float | None]  # seconds of the visit; None where they are not known in advance
RESTORED = "the model was restored"  # reason of visits that a restore takes back
#: seconds of a client's next visit (client, visit); None: the client has left for good
Duration = Callable[[int, int], float | None]


class Engine:
    """A server, its idle clients and the counters of a run.

    `stop_reason` says why the run is over: "updates", "rounds", "target" or "patience", which the engine finds itself,
    or what the caller sets ("time", "stalled"). It is empty until the run ends; the caller checks it after each call.
    """

    def __init__(
        self,
        server: Server,
        idle: IdleClients,
        budget: Budget,
        *,
        max_tickets: int = 1,
        diagnostics: DiagnosticsLog | None = None,
        gate: Gate | None = None,
        monitor: ModelMonitor | None = None,
        early_stopping: EarlyStopping | None = None,
        listeners: Sequence[Callable[[Event], None]] = (),
    ):
        self.server, self.idle, self.budget, self.diagnostics = server, idle, budget, diagnostics
        self.gate, self.monitor, self.early_stopping = gate, monitor, early_stopping
        self.max_tickets = max_tickets  # that a client may hold at a time
        self.tickets_held = array("q", [0]) * server.n_clients  # by client
        self._listeners = tuple(listeners)
        self.steps_between_arrivals = server.method.aggregate.on_instant_end is not None
        self.has_wakeups = self.steps_between_arrivals or monitor is not None
        self._max_updates, self._max_rounds = budget.updates or inf, budget.rounds or inf
        self.model_bytes = server.weights.nbytes
        self.time = 0.0  # of the last instant
        self.in_instant = False  # arrivals of an instant are in, and its tickets are not handed out yet
        self.stop_reason = ""
        self.updates, self.lost, self.rejected = 0, 0, 0
        self.consecutive_rejections = 0  # since the last accepted update
        self.rejections: dict[int, Counter[Reason]] = {}  # by client
        self.voided: list[Ticket] = []  # tickets that the last restore took back
        self.bytes_up, self.bytes_down = 0, 0
        self.staleness = Counter[int]()
        self.curve: list[CurvePoint] = []
        self.scored_version = -1  # server version of the last score

    def begin(self, duration: Duration | None = None) -> list[Handout]:
        """Make the dispatch decision at time 0, which uses one random key even if no client is present."""
        return self._dispatch(duration)

    def examine(self, number: int, result: LocalResult) -> GateVerdict:
        """Return whether the result for a ticket may reach the method. This changes nothing."""
        if self.gate is not None:
            return self.gate.examine(self.server.tickets[number].client, result)
        return ACCEPTED if result.finite else GateVerdict(Reason.NOT_FINITE)

    def accept(
        self,
        time: float,
        number: int,
        result: LocalResult,
        *,
        nbytes: int | None = None,
        verdict: GateVerdict | None = None,
    ) -> Receipt:
        """Give the server the result for a ticket, or reject it if the gate does.

        `nbytes` is the size of the upload as measured; None computes it from the tensors. `verdict` is what `examine`
        has returned for this result; None examines it.
        """
        gate = self.gate
        if gate is not None or not result.finite:
            verdict = self.examine(number, result) if verdict is None else verdict
            if verdict.reason is not None:
                return self.reject(time, number, verdict.reason, verdict.sizes, loss=result.loss)
        if not self.in_instant or time != self.time:
            self._enter(time)
        receipt = self.server.receive(number, result, time)
        self.updates += 1
        self.consecutive_rejections = 0
        self.staleness[receipt.staleness] += 1
        if nbytes is None:
            nbytes = self.model_bytes + total_bytes(result.extras) if result.extras else self.model_bytes
        self.bytes_up += nbytes
        if gate is not None and verdict is not None:
            gate.record_acceptance(receipt.ticket.client, verdict.sizes)
        if self.diagnostics is not None:
            self.diagnostics.arrival(time, receipt.ticket.client, receipt.notes or {})
        self._end_visit("arrival", receipt, result.loss)
        return receipt

    def reject(
        self,
        time: float,
        number: int,
        reason: Reason,
        sizes: Mapping[str, float] = MappingProxyType({}),
        *,
        loss: float | None = None,
    ) -> Receipt:
        """End a ticket whose result was rejected; the gate learns from its sizes."""
        self._enter(time)
        receipt = self.server.lose(number, time)
        client = receipt.ticket.client
        self.rejected += 1
        self.consecutive_rejections += 1
        self.rejections.setdefault(client, Counter())[reason] += 1
        if self.gate is not None:
            self.gate.record_rejection(client, time, sizes)
        self._end_visit("rejected", receipt, loss, reason)
        return receipt

    def lose(self, time: float, number: int, reason: str = "") -> Receipt:
        """End a ticket without an update: it was lost."""
        self._enter(time)
        receipt = self.server.lose(number, time)
        self.lost += 1
        self._end_visit("lost", receipt, None, reason)
        return receipt

    def end_instant(
        self, time: float, changes: Sequence[Change] = (), duration: Duration | None = None
    ) -> list[Handout]:
        """End the instant at `time`: step between arrivals, joins and leaves, hand-outs. Return the new tickets.

        Nothing is handed out where the step reaches the budget.
        """
        if not self.in_instant or time != self.time:
            self._enter(time)
        monitor = self.monitor
        if monitor is not None and time >= monitor.restore_at:
            self.restore(time)
        self.in_instant = False
        if self.steps_between_arrivals and self.server.end_instant(time):
            self._emit("step", stepped=True)
            if self.diagnostics is not None:
                self.diagnostics.record_notes(time, self.server.step_notes or {})
            if self.server.version >= self._max_rounds:
                self.stop_reason = "rounds"
                return []
        for client, joins in changes:
            if joins and client not in self.idle:  # else a restore has freed it at this instant
                self.idle.add(client)
            elif not joins and client in self.idle:
                self.idle.remove(client)
            self._emit("join" if joins else "leave", client=client)
        if monitor is not None and time < monitor.paused_until:
            return []
        return self._dispatch(duration)

    def score(self, time: float, scores: Mapping[str, float | None], health: float | None = None) -> None:
        """Record the metrics of the output weights. If `health`, their loss, explodes, a restore is due.

        Without a test set there are no metrics, and there is no event.
        """
        is_new, self.scored_version = self.is_unscored, self.server.version
        point = CurvePoint.of(time, self.updates, scores, self.budget.metric.name)
        self.curve.append(point)
        if scores:
            self._emit("evaluate", time, accuracy=point.accuracy, loss=point.loss, metrics=scores)
        if self.monitor is not None and health is not None:
            self._watch(self.monitor, time, health)
        rule = self.early_stopping
        if rule is not None and is_new and rule.observe(point, self.server.output_weights):
            self.stop_reason = self.stop_reason or "patience"
        target = self.budget.target
        if target is not None and self.budget.metric.reaches(point.score, target):
            self.stop_reason = "target"

    def _watch(self, monitor: ModelMonitor, time: float, loss: float) -> None:
        if monitor.observe(loss):
            monitor.healthy = self.server.snapshot()
        elif monitor.healthy is not None:
            monitor.raise_alarm(max(time, self.time))
            self._emit("alarm", time, loss=loss)

    def restore(self, time: float) -> None:
        """Return to the server's last healthy state. Tickets handed out since are void: their visits are lost."""
        assert self.monitor is not None
        assert self.monitor.healthy is not None
        self.monitor.restore_at = inf
        self.voided = self.server.restore(self.monitor.healthy, time)
        for ticket in self.voided:
            self.lost += 1
            receipt = Receipt(ticket, False, False, self.server.version - ticket.version)
            self._end_visit("lost", receipt, None, RESTORED)
        self._emit("restore", time, stepped=True)

    def on_client_eval(self, time: float, client: int, metrics: dict[str, float]) -> None:
        """Report a client's own evaluation of the output weights as an event."""
        scores = {"accuracy": metrics.get("accuracy"), "loss": metrics.get("loss")}
        self._emit("evaluate", time, client=client, notes=metrics, **scores)

    def next_wakeup(self) -> float:
        """Return the time at which the server wants an instant even if nothing arrives; inf if it wants none."""
        wakeup = self.server.next_wakeup(self.time) if self.steps_between_arrivals else inf
        return wakeup if self.monitor is None else min(wakeup, self.monitor.next_wakeup(self.time))

    def quarantined(self, time: float) -> Mapping[int, float]:
        """Return the clients that get no work at this time because of rejected updates, and until when."""
        return {} if self.gate is None else self.gate.quarantine.quarantined(time)

    @property
    def alarms(self) -> int:
        """The number of times that the loss of the global model has exploded."""
        return 0 if self.monitor is None else self.monitor.alarms

    @property
    def next_restore(self) -> float:
        """The time at which the last healthy state is to be restored; inf if the model is healthy."""
        return inf if self.monitor is None else self.monitor.restore_at

    def paused_seconds(self, time: float) -> float:
        """Return for how long no tickets are handed out because the model was restored; 0 if they are."""
        return 0.0 if self.monitor is None else max(0.0, self.monitor.paused_until - time)

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
    def result_weights(self) -> Tensor:
        """The weights that the run returns: with early stopping the best ones, else the output weights."""
        best = None if self.early_stopping is None else self.early_stopping.weights
        return self.server.output_weights if best is None else best

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
            "curve": [point.to_row() for point in self.curve],
            "rejections": {c: {str(r): n for r, n in counts.items()} for c, counts in self.rejections.items()},
            **({} if self.gate is None else {"gate": self.gate.save()}),
            **({} if self.monitor is None else {"monitor": self.monitor.save()}),
            **({} if self.early_stopping is None else self._save_stopping(self.early_stopping)),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue from a saved record."""
        for key, name in _SAVED.items():
            setattr(self, name, saved[key])
        self.server.load(saved["server"])
        self.idle.load(saved["roster"])
        self.staleness = Counter(saved["staleness"])
        self.curve = [CurvePoint.from_row(row, self.budget.metric.name) for row in saved["curve"]]
        self.tickets_held = array("q", [0]) * self.server.n_clients
        for ticket in self.server.tickets.values():
            self.tickets_held[ticket.client] += 1
        self.rejections = {c: _counts(found) for c, found in saved.get("rejections", {}).items()}
        if self.gate is not None and "gate" in saved:
            self.gate.load(saved["gate"])
        if self.monitor is not None and "monitor" in saved:
            self.monitor.load(saved["monitor"])
        if self.early_stopping is not None and "early_stopping" in saved:
            self.early_stopping.load(saved["early_stopping"])

    def _save_stopping(self, rule: EarlyStopping) -> dict[str, Any]:
        return {"early_stopping": rule.save(), "stop_reason": self.stop_reason}

    def _enter(self, time: float) -> None:
        assert time > self.time or (self.in_instant and time == self.time), "instants follow one another"
        self.time, self.in_instant = time, True

    def _end_visit(self, kind: EventKind, receipt: Receipt, loss: float | None, reason: str = "") -> None:
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
                reason=reason,
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


def _counts(saved: Mapping[str, int] | int) -> Counter[Reason]:
    """Return saved counts by reason; records of earlier versions hold a number of updates that were not finite."""
    if isinstance(saved, int):
        return Counter({Reason.NOT_FINITE: saved})
    return Counter({Reason(reason): count for reason, count in saved.items()})


def total_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the memory that the tensors take."""
    return sum(t.nbytes for t in tensors.values())
