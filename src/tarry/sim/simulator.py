"""Discrete events on a virtual clock.

An instant is worked through in one order: all its arrivals (by ticket number), the step of a server that works in
epochs, who comes and goes, hand-outs, evaluation. So everybody handed work at an instant sees all updates of that
instant, and evaluating never disturbs the order of events. A server that works in epochs may ask for an instant of its
own. Everything the future depends on saves and loads as a plain record, between instants.
"""

from __future__ import annotations

import gc
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import Tensor

from ..core.client_table import Room, Table
from ..core.errors import BadInput, Diverged
from ..core.events import Event, EventKind
from ..core.idle_clients import Roster
from ..core.server import Receipt, Server
from ..core.state_tree import copied, tables
from ..core.tickets import NOTHING, Ticket
from ..delays.availability import Presence
from ..delays.base import Delay
from ..engine.clock import after
from ..engine.diagnostics import Diary
from ..executors.base import Executor
from ..vector.pool import clear_pool

__all__ = ["Budget", "Score", "Simulator"]

Score = tuple[float | None, float]  # accuracy, loss


@dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first of virtual seconds, updates accepted, server steps, test accuracy."""

    time: float | None = None
    updates: int | None = None
    rounds: int | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        given = {k: v for k, v in vars(self).items() if v is not None}
        if not given:
            raise BadInput("a run needs a budget: --time, --updates, --rounds or --target")
        problems = [f"--{k} {v}: must be above 0" for k, v in given.items() if not v > 0]
        if self.target is not None and len(given) == 1:
            problems.append("--target: give --time, --updates or --rounds too, in case it is never reached")
        if problems:
            raise BadInput(problems)


class Simulator:
    """A server, its clients' delays and a clock."""

    def __init__(
        self,
        server: Server,
        executor: Executor,
        delay: Delay,
        *,
        roster: Roster,
        budget: Budget,
        evaluate: Callable[[Tensor], Score] | None = None,
        eval_every: float = inf,
        presence: Presence | None = None,
        fails: Callable[[int, int], bool] | None = None,
        strict: bool = False,
        diary: Diary | None = None,
        room: Room = Room(),  # noqa: B008 - a constant
        listeners: Sequence[Callable[[Event], None]] = (),
    ):
        self.server, self.executor, self.delay, self.roster, self.budget = server, executor, delay, roster, budget
        self._evaluate, self._every, self._listeners = evaluate, eval_every, tuple(listeners)
        self._presence, self._fails, self._strict = presence, fails, strict
        self._changes = [*([] if presence is None else presence.changes()), (inf, -1, False)]
        self._change = 0  # the next of them
        self._heap: list[tuple[float, int]] = []  # (due, ticket number)
        self._doomed: set[int] = set()  # tickets whose update will be lost
        self._memories: dict[str, Table] = {}  # what each client keeps for itself, by name
        self._room = room
        self._score: tuple[int, tuple[float | None, float | None]] = (-1, (None, None))  # of which version
        self.in_vain = 0  # updates refused since the last one accepted
        self.refusals = Counter[int]()  # by client
        self._next_score = 0.0 if evaluate is not None else inf
        self._evaluations = 0
        self._model_bytes = server.weights.nbytes
        self.diary = diary
        self.per_client = 1  # tickets that a client may hold at a time; a deployment may give it more
        self._settles = server.method.aggregate.settle is not None
        self._end = inf if budget.time is None else budget.time
        self._most = (budget.updates or inf, budget.rounds or inf)
        self.time, self.updates, self.lost, self.refused = 0.0, 0, 0, 0
        self.bytes_up, self.bytes_down = 0, 0
        self.staleness: Counter[int] = Counter()
        self.curve: list[tuple[float, int, float | None, float | None]] = []
        self.started = self.done = False

    def run(self, between: Callable[[], None] = lambda: None) -> None:
        """To the end of the budget; `between` is called after every instant."""
        with _seldom_collected():
            if not self.started:
                self.started = True
                self._dispatch()
                self._scores_up_to(0.0)
            while not self.done:
                self._instant()
                between()
        if self._evaluate is not None and (self.curve[-1][0] < self.time or self._unseen()):
            self._take_score(self.time)

    def _instant(self) -> None:
        change = self._changes[self._change][0]
        time = self._heap[0][0] if self._heap else inf
        if change < time:
            time = change
        if self._settles and (wakes := self.server.wakes(self.time)) < time:
            assert wakes > self.time, "a settled server wakes later"
            time = wakes
        if time > self._end or time == inf:
            self.done = True
            last = self.time if self._end == inf else self._end
            if not self._scores_up_to(last):
                self.time = last
            return
        if self._next_score < time and self._scores_up_to(time, inclusive=False):
            self.done = True
            return
        self.time = time
        while self._heap and self._heap[0][0] == time:
            self._arrive(heapq.heappop(self._heap)[1])
            if self.updates >= self._most[0] or self.server.version >= self._most[1]:
                self.done = True
                return
            if self._end == inf and self.hopeless:  # --updates or --rounds would never be reached
                self.done = True
                return
        if self._settles and self.server.settle(time):
            self._tell("step", stepped=True)
            if self.diary is not None:
                self.diary.noted(time, self.server.settled_notes or {})
            if self.server.version >= self._most[1]:
                self.done = True
                return
        if change == time:
            self._come_and_go()
        self._dispatch()
        if self._next_score <= time:
            self.done = self._scores_up_to(time)

    def _arrive(self, number: int) -> None:
        kind: EventKind
        if number in self._doomed:
            self._doomed.discard(number)
            receipt, loss = self.server.lost(number, self.time), None
            kind = "lost"
            self.lost += 1
        else:
            trained = self.executor.collect(number)
            receipt, loss = self.server.receive(number, trained, self.time), trained.loss
            kind = "arrival" if receipt.accepted else "refused"
            if receipt.accepted:
                self.updates += 1
                self.in_vain = 0
                self.staleness[receipt.staleness] += 1
                self.bytes_up += self._model_bytes
                if trained.extras:
                    self.bytes_up += _nbytes(trained.extras)
                if trained.memory:
                    self._remember(receipt.ticket.client, trained.memory)
                if self.diary is not None:
                    self.diary.arrival(self.time, receipt.ticket.client, receipt.notes or {})
            else:
                self._refuse(receipt, trained.loss)
        client = receipt.ticket.client
        if self.per_client == 1 or client not in self.roster:
            self.roster.add(client)
        if self._listeners:
            self._tell_of(kind, receipt, loss)

    def _remember(self, client: int, memory: Mapping[str, Tensor]) -> None:
        for name, row in memory.items():
            if name not in self._memories:
                self._memories[name] = Table()
                self._memories[name].move_in(self._room, f"client-{name}", self.server.weights.device)
            self._memories[name].put(client, row)
        for name in self._memories.keys() - memory.keys():
            self._memories[name].pop(client)

    def _memory_of(self, client: int) -> Mapping[str, Tensor]:
        if not self._memories:
            return NOTHING
        return {name: row for name, table in self._memories.items() if (row := table.get(client)) is not None}

    def close(self) -> None:
        """The run is over: nothing that was remembered of clients is needed any more."""
        self.server.close()
        for table in self._memories.values():
            table.close()
        clear_pool()

    @property
    def hopeless(self) -> bool:
        """Whether nothing has been accepted any more for long: clients' updates are not finite."""
        return self.in_vain >= max(100, 10 * self.server.n_clients)

    def _refuse(self, receipt: Receipt, loss: float) -> None:
        self.refused += 1
        self.in_vain += 1
        t = receipt.ticket
        self.refusals[t.client] += 1
        if self._strict:
            raise Diverged(
                f"client {t.client} came back at {self.time:g} s with weights that are not finite (loss {loss:g}, "
                f"visit {t.visit}); a smaller learning rate (--lr) may help, or go on without --strict"
            )

    def _come_and_go(self) -> None:
        while self._changes[self._change][0] == self.time:
            _, client, arrives = self._changes[self._change]
            self._change += 1
            if arrives:
                self.roster.add(client)
            elif client in self.roster:
                self.roster.remove(client)
            self._tell("join" if arrives else "leave", client=client)

    def _dispatch(self) -> None:
        again = True
        while again:  # a client that left for good gives its place to another; one that may hold two tickets gets both
            again = False
            for client in self.server.pick(self.roster, self.time):
                seconds = self.delay(client, self.server.visits[client])
                if seconds is None:
                    again = True
                    self._tell("leave", client=client)
                elif 0 < seconds < inf:
                    self._hand_out(client, seconds)
                    again = again or self.per_client > 1
                else:
                    visit = self.server.visits[client]
                    raise BadInput(f"--delay: client {client}, visit {visit}: {seconds}: must be finite and above 0 s")

    def _hand_out(self, client: int, seconds: float) -> None:
        ticket = self.server.hand_out(client, self.time)
        due = after(self.time, seconds)
        doomed = self._fails is not None and self._fails(client, ticket.visit)
        if self._presence is not None and (leaves := self._presence.until(client, self.time)) < due:
            due, doomed = leaves, True
        if self.per_client > 1 and sum(t.client == client for t in self.server.tickets.values()) < self.per_client:
            self.roster.add(client)
        heapq.heappush(self._heap, (due, ticket.number))
        self.bytes_down += self._model_bytes
        if ticket.payload:
            self.bytes_down += _nbytes(ticket.payload)
        if self.diary is not None:
            self.diary.hand_out(ticket, seconds)
        if doomed:
            self._doomed.add(ticket.number)
        else:
            self._submit(ticket, due)
        if self._listeners:
            self._tell("hand_out", client=client, ticket=ticket.number, visit=ticket.visit, seconds=seconds)

    def _submit(self, t: Ticket, due: float) -> None:
        self.executor.submit(t, self._memory_of(t.client), due)

    def _scores_up_to(self, time: float, *, inclusive: bool = True) -> bool:
        """Take the scores due up to `time`; True when the target is reached, with the clock there."""
        while self._next_score < time or (inclusive and self._next_score == time):
            self.time = max(self.time, self._next_score)
            self._evaluations += 1
            self._next_score = self._evaluations * self._every
            if self._take_score(self.time):
                return True
        return False

    def _unseen(self) -> bool:
        return self._score[0] != self.server.version

    def _take_score(self, time: float) -> bool:
        assert self._evaluate is not None
        if self._unseen():
            self._score = (self.server.version, self._evaluate(self.server.answer))
        accuracy, loss = self._score[1]
        self.curve.append((time, self.updates, accuracy, loss))
        self._tell("evaluate", accuracy=accuracy, loss=loss)
        return self.budget.target is not None and accuracy is not None and accuracy >= self.budget.target

    def _tell_of(self, kind: EventKind, receipt: Receipt, loss: float | None) -> None:
        t = receipt.ticket
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

    def _tell(self, kind: EventKind, **what: Any) -> None:
        event = Event(kind, self.time, self.server.version, self.updates, self.server.weights, **what)
        for listener in self._listeners:
            listener(event)

    def save(self) -> dict[str, Any]:
        """Everything, as a plain record; call between instants."""
        plain = {k: getattr(self, k) for k in _SAVED}
        return {
            **plain,
            "server": self.server.save(),
            "roster": self.roster.save(),
            "heap": [list(e) for e in self._heap],
            "doomed": sorted(self._doomed),
            "memories": copied(self._memories),
            "staleness": dict(self.staleness),
            "refusals": dict(self.refusals),
            "curve": [list(p) for p in self.curve],
            "scored": self._score[0],
            "diary": None if self.diary is None else self.diary.save(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Take up where `save` left off: jobs in flight are trained anew, to the same outcome."""
        for k in _SAVED:
            setattr(self, k, saved[k])
        self.server.load(saved["server"])
        self.roster.load(saved["roster"])
        self._heap = [(due, number) for due, number in saved["heap"]]
        self._doomed = set(saved["doomed"])
        self._memories = copied(saved["memories"])
        for name, table in tables(self._memories, "client"):
            table.move_in(self._room, name, self.server.weights.device)
        self.staleness = Counter(saved["staleness"])
        self.refusals = Counter(saved.get("refusals", {}))
        self.curve = [(t, u, a, loss) for t, u, a, loss in saved["curve"]]
        if self.curve:
            self._score = (saved["scored"], (self.curve[-1][2], self.curve[-1][3]))
        if self.diary is not None:
            self.diary.load(saved["diary"])
        for due, number in sorted(self._heap):
            if number not in self._doomed:
                self._submit(self.server.tickets[number], due)


_SAVED = (
    "time",
    "updates",
    "lost",
    "refused",
    "bytes_up",
    "bytes_down",
    "started",
    "done",
    "_change",
    "_evaluations",
    "_next_score",
    "in_vain",
)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Records in flight hold no cycles; looking through a million of them again and again would find nothing."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _nbytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.nbytes for t in tensors.values())
