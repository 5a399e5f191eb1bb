"""Simulator: a virtual clock, clients' delays and an executor around the engine.

At every instant the engine takes all arrivals (by ticket number), the step of a server that works in epochs, joins and
leaves, and hand-outs; then the output weights are evaluated where that is due, which never changes the order of events.
Everything that the rest of a run depends on saves and loads as a plain record, between instants.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from typing import Any

from torch import Tensor

from ..core.client_table import ClientTable, SpillPolicy
from ..core.errors import BadInput, Diverged
from ..core.events import Event
from ..core.idle_clients import IdleClients
from ..core.metric import Scores
from ..core.rejections import Reason
from ..core.server import Server
from ..core.state_tree import copy_tree, tables
from ..core.tickets import NOTHING, LocalResult, Ticket
from ..delays.availability import Availability
from ..delays.base import Delay
from ..engine.budget import Budget
from ..engine.clock import add_seconds
from ..engine.diagnostics import DiagnosticsLog
from ..engine.early_stopping import EarlyStopping
from ..engine.engine import Change, Engine, Handout, total_bytes
from ..engine.evaluation import Evaluation
from ..engine.gate import Gate
from ..engine.model_monitor import ModelMonitor
from ..executors.base import Executor
from ..vector.pool import clear_pool

__all__ = ["Simulator"]


class Simulator:
    """An engine, its clients' delays and a clock. `engine` holds the counters and says why the run stopped.

    `rejects` says which of the visits that fail were rejected, and why: those of a record.

    `waiting` is entered while a result or a score is awaited. An exception there changes nothing: the simulator can be
    saved, and continues from the same place.
    """

    def __init__(
        self,
        server: Server,
        executor: Executor,
        delay: Delay,
        *,
        roster: IdleClients,
        budget: Budget,
        evaluate: Callable[[Tensor], Scores] | None = None,
        eval_every: float = inf,
        availability: Availability | None = None,
        fails: Callable[[int, int], bool] | None = None,
        rejects: Callable[[int, int], Reason | None] | None = None,
        gate: Gate | None = None,
        monitor: ModelMonitor | None = None,
        measure: Callable[[Tensor], float] | None = None,
        early_stopping: EarlyStopping | None = None,
        strict: bool = False,
        diagnostics: DiagnosticsLog | None = None,
        room: SpillPolicy = SpillPolicy(),  # noqa: B008 - a constant
        listeners: Sequence[Callable[[Event], None]] = (),
        waiting: AbstractContextManager[None] | None = None,
    ):
        self.server, self.executor, self.delay, self.budget = server, executor, delay, budget
        self.engine = Engine(
            server,
            roster,
            budget,
            diagnostics=diagnostics,
            gate=gate,
            monitor=monitor,
            early_stopping=early_stopping,
            listeners=listeners,
        )
        self._evaluation = Evaluation(self.engine, evaluate, eval_every, measure)
        self._evaluates = self._evaluation.is_on
        self._availability, self._fails, self._strict, self._room = availability, fails, strict, room
        self._rejects = rejects  # which of the visits that fail were rejected, and why
        self._waiting = nullcontext() if waiting is None else waiting
        self._collect = executor.collect if waiting is None else self._wait_for
        self._changes = [*([] if availability is None else availability.changes()), (inf, -1, False)]
        self._next_change = 0  # index into _changes
        self._heap: list[tuple[float, int]] = []  # (due, ticket number)
        self._doomed: set[int] = set()  # tickets whose update will be lost
        self._guarded = gate is not None or monitor is not None
        self._void: set[int] = set()  # tickets that a restore took back, and whose results are still to be collected
        self._withheld: dict[int, float] = {}  # clients that the gate or a restore keeps away, until when
        self._memories: dict[str, ClientTable] = {}  # what clients keep from visit to visit, by name
        self.started = False

    @property
    def time(self) -> float:
        """The virtual clock, in seconds."""
        return self.engine.time

    def run(self, on_instant: Callable[[], None] = lambda: None) -> None:
        """Run to the end of the budget; call `on_instant` after every instant."""
        engine = self.engine
        with _rare_garbage_collection():
            if not self.started:
                self.started = True
                self._submit_all(engine.begin(self._duration))
            if not engine.curve and not engine.stop_reason:
                self._score_until(0.0)
                engine.stop_reason = ""  # a target that the first weights reach ends the run at the second score
            while not engine.stop_reason:
                self.step()
                on_instant()
        if self._evaluation.is_on and (engine.curve[-1][0] < self.time or engine.is_unscored):
            self._score(self.time)
        if engine.next_restore < inf:  # no instant follows that would do it
            engine.restore(self.time)
            self._score(self.time)

    def step(self) -> None:
        """Work through the next instant, and through the scores that are due before and at it."""
        engine, heap = self.engine, self._heap
        change = self._changes[self._next_change][0]
        time = engine.time if engine.in_instant else self._next_instant(change)
        if time == inf or (self.budget.time is not None and time > self.budget.time):
            self._finish()
            return
        if self._evaluates and self._evaluation.next_due < time and self._score_until(time, inclusive=False):
            return
        while heap and heap[0][0] == time:
            number, result = heap[0][1], None
            if number not in self._doomed:
                result = self._collect(number)
            heapq.heappop(heap)
            if self._void and number in self._void:
                self._void.discard(number)
                self._doomed.discard(number)
                continue
            self._end_visit(time, number, result)
            if engine.consecutive_rejections and self.budget.time is None and engine.has_stalled:
                engine.stop_reason = engine.stop_reason or "stalled"  # --updates or --rounds would never be reached
            if engine.stop_reason:
                return
        changes = self._changes_at(time) if change == time else ()
        if self._guarded:
            self._end_guarded_instant(time, changes)
        else:
            self._submit_all(engine.end_instant(time, changes, self._duration))
        if self._evaluates and not engine.stop_reason:
            self._score_until(time)

    def _wait_for(self, number: int) -> LocalResult:
        with self._waiting:
            return self.executor.collect(number)

    def _next_instant(self, change: float) -> float:
        """Return the time of the next arrival, join or leave (at `change`), or step of the server."""
        engine = self.engine
        time = self._heap[0][0] if self._heap else inf
        if change < time:
            time = change
        if self._withheld:
            time = min(time, *self._withheld.values())
        if engine.has_wakeups and (wakeup := engine.next_wakeup()) < time:
            assert wakeup > engine.time, "a server that has just stepped wakes up later"
            time = wakeup
        return time

    def close(self) -> None:
        """Release what the run held: the server's and the clients' tables, and the pool of vectors."""
        self.server.close()
        for table in self._memories.values():
            table.close()
        clear_pool()

    def _finish(self) -> None:
        """End a run in which nothing more happens: its time is over, or no ticket and no client is left to wait for."""
        end = self.budget.time
        last = self.time if end is None else end
        if not self._score_until(last):
            self.engine.time = last
            self.engine.stop_reason = "stalled" if end is None else "time"

    def _end_visit(self, time: float, number: int, result: LocalResult | None) -> None:
        if result is None:
            self._doomed.discard(number)
            self._end_doomed(time, number)
            return
        if self._strict and not result.finite:
            self._raise_diverged(time, self.server.tickets[number], result)
        receipt = self.engine.accept(time, number, result)
        if result.memory and receipt.accepted:
            self._remember(receipt.ticket.client, result.memory)

    def _end_doomed(self, time: float, number: int) -> None:
        ticket = self.server.tickets[number]
        reason = None if self._rejects is None else self._rejects(ticket.client, ticket.visit)
        if reason is None:
            self.engine.lose(time, number)
        else:
            self.engine.reject(time, number, reason)

    def _end_guarded_instant(self, time: float, changes: Sequence[Change]) -> None:
        """End an instant of a run with a gate or a monitor."""
        engine = self.engine
        if engine.gate is not None:
            changes = self._with_withheld(time, changes)
        self._submit_all(engine.end_instant(time, changes, self._duration))
        if engine.voided:
            self._withhold_voided()

    def _with_withheld(self, time: float, changes: Sequence[Change]) -> list[Change]:
        """Return the changes with the leaves of clients that get no work from now on, and the joins of those that do.

        A client that is kept away does not join before that is over.
        """
        engine, withheld = self.engine, self._withheld
        over = [client for client, until in sorted(withheld.items()) if until <= time]
        for client in over:
            del withheld[client]
        for client, until in engine.quarantined(time).items():
            withheld[client] = max(withheld.get(client, 0.0), until)
        leaves = [(c, False) for c in sorted(withheld) if c in engine.idle]
        rest = [(c, joins) for c, joins in changes if not (joins and c in withheld)]
        joining = {c for c, joins in rest if joins}
        back = [c for c in over if c not in withheld and c not in joining and c not in engine.idle]
        return leaves + rest + [(c, True) for c in back if self._is_available(c, time)]

    def _is_available(self, client: int, time: float) -> bool:
        return self._availability is None or self._availability.here(client, time)

    def _withhold_voided(self) -> None:
        """Note the visits that a restore took back; their clients are away until these end."""
        engine, due = self.engine, {number: time for time, number in self._heap}
        for ticket in engine.voided:
            self._void.add(ticket.number)
            if engine.gate is not None:
                self._withheld[ticket.client] = max(self._withheld.get(ticket.client, 0.0), due[ticket.number])
        engine.voided = []

    def _raise_diverged(self, time: float, ticket: Ticket, result: LocalResult) -> None:
        raise Diverged(
            f"client {ticket.client} came back at {time:g} s with weights that are not finite "
            f"(loss {result.loss:g}, visit {ticket.visit}); a smaller learning rate (--lr) may help, "
            "or go on without --strict"
        )

    def _changes_at(self, time: float) -> list[Change]:
        changes = []
        while self._changes[self._next_change][0] == time:
            changes.append(self._changes[self._next_change][1:])
            self._next_change += 1
        return changes

    def _duration(self, client: int, visit: int) -> float | None:
        seconds = self.delay(client, visit)
        if seconds is None or 0 < seconds < inf:
            return seconds
        raise BadInput(f"--delay: client {client}, visit {visit}: {seconds}: must be finite and above 0 s")

    def _submit_all(self, handouts: Sequence[Handout]) -> None:
        """Decide when each visit ends and whether its update is lost; have those that are not lost trained."""
        engine = self.engine
        for ticket, seconds in handouts:
            assert seconds is not None
            client, due = ticket.client, add_seconds(engine.time, seconds)
            doomed = self._fails is not None and self._fails(client, ticket.visit)
            if self._availability is not None and (leaves := self._availability.until(client, self.time)) < due:
                due, doomed = leaves, True
            heapq.heappush(self._heap, (due, ticket.number))
            engine.bytes_down += engine.model_bytes
            if ticket.payload:
                engine.bytes_down += total_bytes(ticket.payload)
            if doomed:
                self._doomed.add(ticket.number)
            else:
                self.executor.submit(ticket, self._memory_of(client) if self._memories else NOTHING, due)

    def _remember(self, client: int, memory: Mapping[str, Tensor]) -> None:
        for name, row in memory.items():
            if name not in self._memories:
                self._memories[name] = ClientTable()
                self._memories[name].attach(self._room, f"client-{name}", self.server.weights.device)
            self._memories[name].put(client, row)
        for name in self._memories.keys() - memory.keys():
            self._memories[name].pop(client)

    def _memory_of(self, client: int) -> Mapping[str, Tensor]:
        return {name: row for name, table in self._memories.items() if (row := table.get(client)) is not None}

    def _score_until(self, time: float, *, inclusive: bool = True) -> bool:
        """Record the scores due up to `time`; True when the run is over, or a restore comes first."""
        for due in self._evaluation.due(time, inclusive=inclusive):
            self._score(due)
            if self.engine.stop_reason in ("target", "patience"):
                return True
        return self.engine.next_restore < time

    def _score(self, time: float) -> None:
        with self._waiting:
            scores, health = self._evaluation.score()
        self.engine.time = max(self.time, time)
        self.engine.score(self.time, scores, health)

    def save(self) -> dict[str, Any]:
        """Return everything as a plain record; call this between instants, or after an exception in `waiting`."""
        engine = self.engine
        return {
            **engine.save(),
            **({"in_instant": True} if engine.in_instant else {}),  # interrupted there
            "started": self.started,
            "done": engine.stop_reason != "",
            "_change": self._next_change,
            "_evaluations": len(engine.curve),
            "_next_score": self._evaluation.next_due,
            "heap": [list(e) for e in self._heap],
            "doomed": sorted(self._doomed),
            "memories": copy_tree(self._memories),
            "in_vain": engine.consecutive_rejections,
            **({"withheld": dict(self._withheld)} if self._withheld else {}),
            "diary": None if engine.diagnostics is None else engine.diagnostics.save(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from a saved record. Visits in flight are trained again, with the same results."""
        engine = self.engine
        engine.load(saved)
        self.started = saved["started"]
        engine.stop_reason = saved.get("stop_reason", "ended") if saved["done"] else ""  # older records do not say why
        engine.in_instant = saved.get("in_instant", False)
        self._next_change = saved["_change"]
        open_tickets = self.server.tickets
        self._heap = [(due, number) for due, number in saved["heap"] if number in open_tickets]
        self._doomed = set(saved["doomed"]) & open_tickets.keys()
        self._withheld = dict(saved.get("withheld", {}))
        self._memories = copy_tree(saved["memories"])
        for name, table in tables(self._memories, "client"):
            table.attach(self._room, name, self.server.weights.device)
        engine.consecutive_rejections = saved["in_vain"]
        if engine.diagnostics is not None:
            engine.diagnostics.load(saved["diary"])
        for due, number in sorted(self._heap):
            if number not in self._doomed:
                ticket = self.server.tickets[number]
                self.executor.submit(ticket, self._memory_of(ticket.client), due)


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect cyclic garbage rarely: tickets in flight hold no cycles, and a scan of a million of them is slow."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
