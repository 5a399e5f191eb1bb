"""The run itself, as a deployment makes it: instants one after the other, each worked through in the simulator's order.

    arrivals (by ticket number) → the step of a server that works in epochs → who comes and goes → hand-outs

Nothing here knows a network or a clock. What happens is decided by what is put in and when, so that the rows of a
journal make the same run again, and a simulator makes it from the same comings and goings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from ...core.events import Event, EventKind
from ...core.idle_clients import Roster
from ...core.local_rule import LocalRule
from ...core.method import Horizon, Method
from ...core.server import Receipt, Server
from ...core.tickets import LocalResult, Ticket

__all__ = ["Change", "Course", "most_in_flight"]

Change = tuple[int, bool]  # client, whether it comes
_PARTS = ("correct", "aggregate", "step", "reply", "dispatch")


def most_in_flight(method: Method) -> int:
    """How many tickets a client may hold: two where nothing of the next depends on what becomes of the last.

    That is so when a client starts from the global of the moment whatever came of its last visit, keeps nothing for
    itself, and is handed work whenever there is room.
    """
    plain = Method("plain")
    free = all(getattr(method, p).apply is getattr(plain, p).apply for p in ("reply", "dispatch"))
    offers = any(getattr(method, p).offer is not None for p in _PARTS)
    return 2 if free and not offers and type(method.local).finish is LocalRule.finish else 1


class Course:
    """A server, who is there, and what came of it so far."""

    def __init__(
        self,
        server: Server,
        *,
        concurrency: int,
        per_client: int,
        horizon: Horizon,
        target: float | None = None,
        listeners: Sequence[Callable[[Event], None]] = (),
    ):
        n = server.n_clients
        self.server, self.per_client, self._listeners = server, per_client, tuple(listeners)
        self.roster = Roster(n, concurrency * per_client, range(n))
        self._horizon, self._target = horizon, target
        self._settles = server.method.aggregate.settle is not None
        self.load: Counter[int] = Counter()  # tickets out, by client
        self.kept: dict[int, int] = {}  # the visit whose memory counts, by client
        self.time = 0.0  # of the last instant
        self.updates, self.lost, self.refused = 0, 0, 0
        self.bytes_up, self.bytes_down = 0, 0
        self.staleness: Counter[int] = Counter()
        self.curve: list[tuple[float, int, float | None, float | None]] = []
        self.scored = -1  # the version of the last score
        self.open = False  # arrivals of an instant are in, and nothing was handed out yet
        self.done = ""  # why the run is over

    def begin(self) -> None:
        """At time 0 nobody is there; a simulator asks whom to hand work to all the same."""
        self.server.pick(self.roster, 0.0)

    def update(self, time: float, number: int, trained: LocalResult, *, nbytes: int, keeps: bool) -> Receipt:
        """An update that was accepted."""
        self._at(time)
        receipt = self.server.receive(number, trained, time)
        assert receipt.accepted, "only what is finite comes here"
        client = receipt.ticket.client
        self.updates += 1
        self.staleness[receipt.staleness] += 1
        self.bytes_up += nbytes
        if keeps:
            self.kept[client] = receipt.ticket.visit
        self._arrived("arrival", receipt, trained.loss)
        return receipt

    def fail(self, time: float, number: int, *, refused: bool) -> Receipt:
        """A ticket that brought nothing: lost on the way, or refused because it was not finite."""
        self._at(time)
        receipt = self.server.lost(number, time)
        self.refused += refused
        self.lost += not refused
        self._arrived("refused" if refused else "lost", receipt, None)
        return receipt

    def _at(self, time: float) -> None:
        assert time > self.time or (self.open and time == self.time), "instants come one after the other"
        self.time, self.open = time, True

    def _arrived(self, kind: EventKind, receipt: Receipt, loss: float | None) -> None:
        t = receipt.ticket
        self.load[t.client] -= 1
        if t.client not in self.roster:
            self.roster.add(t.client)
        self._tell(
            kind,
            client=t.client,
            ticket=t.number,
            visit=t.visit,
            staleness=receipt.staleness,
            stepped=receipt.stepped,
            loss=loss,
            notes=receipt.notes,
        )
        h = self._horizon
        if self.updates >= (h.updates or inf):
            self.done = "updates"
        elif self.server.version >= (h.rounds or inf):
            self.done = "rounds"

    def changes(self, present: Collection[int]) -> list[Change]:
        """What is missing to have just these clients there."""
        away = [(c, False) for c in sorted(self.roster) if c not in present]
        room = [c for c in sorted(present) if c not in self.roster and self.load[c] < self.per_client]
        return away + [(c, True) for c in room]

    def close(self, time: float, changes: Sequence[Change]) -> list[Ticket]:
        """End an instant: a step, comings and goings, and the tickets that are handed out."""
        if not self.open:
            self._at(time)
        self.open = False
        if self._settles and self.server.settle(time):
            self._tell("step", stepped=True)
            if self.server.version >= (self._horizon.rounds or inf):
                self.done = "rounds"
                return []
        for client, comes in changes:
            if comes:
                self.roster.add(client)
            else:
                self.roster.remove(client)
            self._tell("join" if comes else "leave", client=client)
        handed: list[Ticket] = []
        while picked := self.server.pick(self.roster, time):
            handed += [self._hand_out(client, time) for client in picked]
            if self.per_client == 1:
                break
        return handed

    def _hand_out(self, client: int, time: float) -> Ticket:
        ticket = self.server.hand_out(client, time)
        self.load[client] += 1
        if self.load[client] < self.per_client:
            self.roster.add(client)
        self._tell("hand_out", client=client, ticket=ticket.number, visit=ticket.visit)
        return ticket

    def wakes(self) -> float:
        """When the server wants an instant though nobody comes."""
        return self.server.wakes(self.time) if self._settles else inf

    def score(self, time: float, accuracy: float | None, loss: float | None) -> None:
        self.scored = self.server.version
        self.curve.append((time, self.updates, accuracy, loss))
        self._tell("evaluate", time, accuracy=accuracy, loss=loss)
        if self._target is not None and accuracy is not None and accuracy >= self._target:
            self.done = "target"

    def heard(self, time: float, client: int, metrics: dict[str, float]) -> None:
        """A client's own evaluation of the global."""
        told = {"accuracy": metrics.get("accuracy"), "loss": metrics.get("loss")}
        self._tell("evaluate", time, client=client, notes=metrics, **told)

    def _tell(self, kind: EventKind, time: float | None = None, **what: Any) -> None:
        event = Event(
            kind, self.time if time is None else time, self.server.version, self.updates, self.server.weights, **what
        )
        for listener in self._listeners:
            listener(event)

    def save(self) -> dict[str, Any]:
        assert not self.open, "saved between instants"
        return {
            **{k: getattr(self, k) for k in _SAVED},
            "server": self.server.save(),
            "roster": self.roster.save(),
            "load": dict(self.load),
            "kept": dict(self.kept),
            "staleness": dict(self.staleness),
            "curve": [list(p) for p in self.curve],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        for k in _SAVED:
            setattr(self, k, saved[k])
        self.server.load(saved["server"])
        self.roster.load(saved["roster"])
        self.load, self.staleness = Counter(saved["load"]), Counter(saved["staleness"])
        self.kept = dict(saved["kept"])
        self.curve = [(t, u, a, loss) for t, u, a, loss in saved["curve"]]


_SAVED = ("time", "updates", "lost", "refused", "bytes_up", "bytes_down", "scored", "done")
