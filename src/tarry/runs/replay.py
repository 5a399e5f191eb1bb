"""Replay of a federation: a simulator repeats its recorded joins, leaves and arrivals, and trains every visit again.

Where clients train as `tarry.deploy.client_app` does, the weights equal those of the federation to the bit. Else the
first update that differs is named. Clients that train by code of their own are not repeated: the updates that the
federation has archived are given to the server again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config.spec import Spec
from ..core.errors import BadInput, errors_as_keywords
from ..core.events import Event
from ..core.metric import ACCURACY, Metric
from ..core.tickets import NOTHING, LocalResult
from ..delays.measured import TraceRow
from ..delays.recorded import RecordedAvailability, RecordedDelays, VisitRecord
from ..engine.model_monitor import ModelMonitor
from ..executors.base import Executor
from ..record.digests import digest_of_vector
from ..record.journal import NAME
from ..record.result import Result, sha256
from ..record.rows import read_rows
from ..record.run_folder import RunFolder
from ..record.update_archive import UpdateArchive
from ..report.formatting import pluralize
from ..training.determinism import deterministic, generator_restored
from .build import BuiltRun, build_run
from .remote_data import build_without_data
from .simulation import Recorded, Simulation
from .stored_spec import errors_of_stored_settings, stored_spec

__all__ = ["Record", "Replay", "replay", "replay_folder"]


@dataclass(frozen=True)
class Record:
    """The record of a federation, in the form that a simulator needs."""

    n_clients: int
    per_client: int
    visits: dict[tuple[int, int], VisitRecord]
    changes: list[tuple[float, int, bool]]
    digests: dict[int, str]  # of updates, by ticket number
    losses: list[float | None]  # that the monitor of the model judged, in their order
    updates: int
    end: float  # of the last instant
    ended: str  # why it ended; empty if it is running or was stopped
    client: str  # kind of the clients' app
    without_memory: frozenset[tuple[int, int]]  # visits that began without the memory of the visits before

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Read the journal of a folder, up to its last whole instant."""
        path = folder / NAME
        if not path.is_file():
            raise BadInput(f"{folder}: no federation was recorded here (no {NAME})")
        rows = list(read_rows(path))
        ended = next((r["why"] for r in rows if r["op"] == "end"), "")
        if not ended:  # rows after the last whole instant do not count yet
            last = max((i for i, r in enumerate(rows) if r["op"] == "close"), default=0)
            rows = rows[: last + 1]
        begun = rows[0]
        visits, who, changes = dict[tuple[int, int], VisitRecord](), dict[int, tuple[int, int]](), []
        for r in rows:
            if r["op"] == "close":
                changes += [(r["t"], c, comes) for c, comes in r["changes"]]
                for number, client, visit, _ in r["handouts"]:
                    who[number] = (client, visit)
                    visits[client, visit] = VisitRecord(r["t"], None)
            elif r["op"] in ("update", "lost", "rejected"):
                at = who[r["number"]]
                reason = r["why"] if r["op"] == "rejected" else ""
                visits[at] = VisitRecord(visits[at].start, r["t"], r["op"] != "update", reason)
        end = max((r["t"] for r in rows if r["op"] in ("update", "lost", "rejected", "close", "end")), default=0.0)
        digests = {r["number"]: r["digest"] for r in rows if r["op"] == "update"}
        losses = [r.get("health", r["loss"]) for r in rows if r["op"] == "score"]
        return cls(
            n_clients=begun["clients"],
            per_client=begun["per_client"],
            visits=visits,
            changes=changes,
            digests=digests,
            losses=losses,
            updates=len(digests),
            end=end,
            ended=ended,
            client=begun.get("client", "tarry"),
            without_memory=_visits_without_memory(rows),
        )

    def trace(self) -> list[TraceRow]:
        """Return a row for every visit that ended, for --delay trace."""
        rows = [TraceRow(c, v, w.start, w.end - w.start, "lost" if w.lost else "came") for (c, v), w in
                self.visits.items() if w.end is not None]  # fmt: skip
        return [TraceRow(r.client, i, *r[2:]) for c in sorted({r.client for r in rows}) for i, r in
                enumerate(r for r in rows if r.client == c)]  # fmt: skip


@dataclass(frozen=True, repr=False)
class Replay:
    """The result of a replay: whether the simulation had the updates and the weights of the federation.

    >>> tarry.Replay(updates=3, score=0.5, weights_sha256="ab", recorded_sha256="ab", first_difference=None)
    Replay(same as recorded: 3 updates, accuracy 0.500)
    """

    updates: int
    score: float | None  # at the last evaluation
    weights_sha256: str
    recorded_sha256: str | None
    first_difference: tuple[int, int, int] | None  # ticket, client and visit of the first update that differs
    metric: Metric = ACCURACY  # what the score is

    @property
    def same(self) -> bool:
        """Return whether every update and the final weights equal the recorded ones to the bit.

        >>> tarry.Replay(3, 0.5, "ab", recorded_sha256="cd", first_difference=None).same
        False
        """
        return self.first_difference is None and self.recorded_sha256 in (None, self.weights_sha256)

    def __repr__(self) -> str:
        if self.first_difference is not None:
            ticket, client, visit = self.first_difference
            state = f"differs first in ticket {ticket}, client {client}, visit {visit}"
        else:
            state = "same as recorded" if self.same else "other final weights than recorded"
        score = "" if self.score is None else f", {self.metric.text(self.score)}"
        return f"Replay({state}: {pluralize(self.updates, 'update')}{score})"


class _Compared:
    """An executor whose results are compared with the record."""

    def __init__(self, executor: Executor, record: Record):
        self._inner, self._digests, self.description = executor, record.digests, executor.description
        self._without_memory = record.without_memory
        self._who: dict[int, tuple[int, int]] = {}
        self.first_difference: tuple[int, int, int] | None = None

    def submit(self, ticket: Any, memory: Any, due: float) -> None:
        self._who[ticket.number] = (ticket.client, ticket.visit)
        forgotten = (ticket.client, ticket.visit) in self._without_memory
        self._inner.submit(ticket, NOTHING if forgotten else memory, due)

    def collect(self, number: int) -> LocalResult:
        trained = self._inner.collect(number)
        digest = self._digests.get(number)
        if self.first_difference is None and digest is not None and digest_of_vector(trained.delta) != digest:
            self.first_difference = (number, *self._who[number])
        return trained

    def save(self) -> Any:
        return self._inner.save()

    def load(self, saved: Any) -> None:
        self._inner.load(saved)

    def close(self) -> None:
        self._inner.close()


class _ArchivedResults:
    """An executor that returns the updates that a federation has archived."""

    description = ""

    def __init__(self, updates: UpdateArchive):
        self._updates = updates

    def submit(self, ticket: Any, memory: Any, due: float) -> None:
        pass

    def collect(self, number: int) -> LocalResult:
        return self._updates.load(number)

    def save(self) -> Any:
        return None

    def load(self, saved: Any) -> None:
        pass

    def close(self) -> None:
        pass


def _visits_without_memory(rows: Sequence[dict[str, Any]]) -> frozenset[tuple[int, int]]:
    """Return the visits of clients that had lost their memory, or whose slot was another client's before."""
    who, places, released, found = dict[int, tuple[int, int]](), dict[str, int](), set[int](), set[tuple[int, int]]()
    for r in rows:
        if r["op"] == "client":
            places[r["name"]] = r["place"]
        elif r["op"] == "release":
            released.add(places.pop(r["name"]))
        elif r["op"] == "close":
            for number, client, visit, _ in r["handouts"]:
                who[number] = (client, visit)
                if client in released:
                    found.add((client, visit))
        elif r["op"] == "update":
            if r["memory_lost"]:
                found.add(who[r["number"]])
            if r["keeps_memory"] and who[r["number"]] in found:
                released.discard(who[r["number"]][0])
    return frozenset(found)


class _RecordedMonitor(ModelMonitor):
    """A monitor that judges the recorded losses, so that it restores where the federation did."""

    def __init__(self, multiple: float, losses: Sequence[float | None]):
        super().__init__(multiple)
        self._recorded = iter([loss for loss in losses if loss is not None])

    def observe(self, loss: float) -> bool:
        return super().observe(next(self._recorded, loss))


def replay(folder: str | Path, *, callbacks: Sequence[Callable[[Event], None]] = ()) -> Replay:
    """Simulate a recorded federation and compare its updates and weights, to the bit.

    >>> tarry.replay("no-federation")
    Traceback (most recent call last):
    tarry.core.errors.BadInput: no-federation: no federation was recorded here (no journal.jsonl)
    """
    with errors_as_keywords():
        return replay_folder(Path(folder), callbacks=callbacks)


def replay_folder(folder: Path, *, callbacks: Sequence[Callable[[Event], None]] = ()) -> Replay:
    """Simulate the federation in a folder."""
    run = RunFolder(folder)
    record, spec = Record.read(folder), stored_spec(run.spec, run.written_settings())
    archive = UpdateArchive(folder) if record.client != "tarry" else None
    if archive is not None and not archive.exist:
        raise BadInput(
            f"{folder}: its clients train by their own code, which is not repeated here; a federation with"
            " keep-updates = true in its run config can be replayed"
        )
    with errors_of_stored_settings(run.spec):
        whole = build_run(spec) if archive is None else _without_data(spec, record.n_clients)
    if len(whole.task.clients) != record.n_clients:
        raise BadInput(f"{folder}: its clients hold their own examples, which are not here; it cannot be trained again")
    monitor = None if whole.monitor() is None else _RecordedMonitor(spec.loss_multiple, record.losses)
    budget = replace(whole.budget, time=max(record.end, 1e-6))
    delay = RecordedDelays(record.visits)
    replayed = replace(
        whole,
        delay=delay,
        availability=RecordedAvailability(record.n_clients, record.changes),
        budget=replace(budget, updates=record.updates) if record.ended == "updates" else budget,
    )
    simulation = Simulation(replayed)
    with ExitStack() as stack:
        stack.enter_context(deterministic())
        stack.enter_context(generator_restored())
        executor = _Compared(simulation.executor() if archive is None else _ArchivedResults(archive), record)
        stack.callback(executor.close)
        sim = simulation.simulator(executor, list(callbacks), recorded=Recorded(delay.rejection, monitor))
        sim.engine.max_tickets = record.per_client
        sim.engine.idle.concurrency *= record.per_client
        sim.run()
        score = sim.engine.curve[-1].score if sim.engine.curve else None
        result = Replay(
            sim.engine.updates,
            score,
            sha256(sim.server.output_weights),
            _recorded_digest(folder),
            executor.first_difference,
            sim.budget.metric.description,
        )
        sim.close()
    return result


def _without_data(spec: Spec, n_clients: int) -> BuiltRun:
    built = build_without_data(spec, may_lack_shapes=True)
    return replace(built, task=replace(built.task, clients=[built.task.clients[0]] * n_clients))


def _recorded_digest(folder: Path) -> str | None:
    """The digest of the final weights of the federation; None if it is not over."""
    return Result.read(folder).weights_sha256 if (folder / "result.json").is_file() else None
