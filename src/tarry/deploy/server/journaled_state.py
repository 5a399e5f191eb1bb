"""All that a driver must not forget: the run, who is who, which tickets are out. Every change of it is a row.

    do(row)        written to the journal, then done
    checkpoint()   all of it in one file; the rows behind it make the rest again

A row says what happened and when; doing it again has the same outcome to the bit.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.events import Event
from ...core.method import Horizon
from ...core.server import Server
from ...core.tickets import Ticket
from ...record.journal import Journal, Row
from ...record.rows import Recorder
from ..protocol import Answer
from .course import Change, Course
from .deadlines import Pace
from .identities import Clients
from .open_tickets import Book, Held
from .stats import Health

__all__ = ["Keeper"]


class Keeper:
    """What a driver knows, in a folder."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        *,
        deadline: float,
        concurrency: int,
        per_client: int,
        horizon: Horizon,
        target: float | None,
        known: dict[str, str] | None,
        listeners: Sequence[Callable[[Event], None]],
        began: float,
    ):
        self.folder, self.journal = folder, Journal(folder)
        saved = self.journal.latest()
        self._recorder = Recorder(folder / "events.jsonl", at=saved["events"] if saved else 0)
        self.course = Course(
            server,
            concurrency=concurrency,
            per_client=per_client,
            horizon=horizon,
            target=target,
            listeners=[self._recorder, *listeners],
        )
        self.clients, self.book, self.health = Clients(server.n_clients, known), Book(), Health()
        self.pace = Pace(deadline)
        self.federation, self.began, self.starts, self.ended = "", began, 0, ""
        self._count = 0  # checkpoints
        self._behind: set[int] = set()  # updates since the last one
        try:
            self._take_up(saved)
        except BaseException:
            self.shut()
            raise

    def _take_up(self, saved: Any) -> None:
        if saved is not None:
            self._restore(saved)
        for row in self.journal.rows(saved["place"] if saved is not None else 0):
            self._apply(row, None)
        if not self.federation:
            n, most = self.course.server.n_clients, self.course.per_client
            begun = {"federation": secrets.token_hex(8), "began": self.began, "clients": n, "per_client": most}
            self.do({"op": "begin", "t": 0.0, **begun}, sync=True)
        if self.course.done and not self.ended:  # killed right before it was said
            self._end()
        if self.course.open:  # killed in the middle of an instant: it ends now, with nobody in sight
            self.close(self.course.time, self.course.changes(()))

    def do(self, row: Row, *, answer: Answer | None = None, sync: bool = False) -> None:
        """Write it down, then do it."""
        self.journal.append(row, sync=sync)
        self._apply(row, answer)
        if self.course.done and not self.ended:
            self._end()

    def _end(self) -> None:
        self.do({"op": "end", "t": self.course.time, "why": self.course.done}, sync=True)

    def accept(self, row: Row, answer: Answer) -> None:
        """An update: on disk, then applied."""
        self.journal.keep(row["number"], answer.trained)
        self.do({"op": "update", **row}, answer=answer, sync=True)

    def close(self, time: float, changes: Sequence[Change]) -> list[Ticket]:
        """End an instant; its tickets are in the journal before anybody is sent one."""
        tickets = self.course.close(time, changes)
        handed = [[t.number, t.client, t.visit, Book.token()] for t in tickets]
        row = {"op": "close", "t": time, "changes": [list(c) for c in changes], "handed": handed}
        self.journal.append(row)
        self._recorder.flush()
        self._hold(row)
        if self.course.done:
            self._end()
        return tickets

    def _apply(self, row: Row, answer: Answer | None) -> None:
        op, course = row["op"], self.course
        if op == "client":
            self.clients.bind(row["name"], row["key"], row["place"], row["node"])
            patient = self.health[row["place"]]
            patient.name, patient.node = row["name"], row["node"]
        elif op in ("update", "lost", "refused"):
            self._settle(row, answer)
        elif op == "close":
            tickets = course.close(row["t"], [(c, comes) for c, comes in row["changes"]])
            assert [[t.number, t.client, t.visit] for t in tickets] == [h[:3] for h in row["handed"]], "another run"
            self._hold(row)
        elif op == "sent":
            self._sent(row)
        elif op == "score":
            course.score(row["t"], row["accuracy"], row["loss"])
        elif op == "heard":
            course.heard(row["t"], row["client"], row["metrics"])
        elif op == "end":
            self.ended, course.open = row["why"], False
        elif op == "run":
            self.starts += 1
        else:
            assert op == "begin", op
            self.federation, self.began = row["federation"], row["began"]
            course.begin()

    def _settle(self, row: Row, answer: Answer | None) -> None:
        held = self.book.drop(row["number"])
        assert held is not None
        patient = self.health[held.client]
        patient.last = row["t"]
        if row["op"] != "update":
            patient.failed[row["why"]] += 1
            self.course.fail(row["t"], held.number, refused=row["op"] == "refused")
            return
        trained = answer.trained if answer is not None else self.journal.update(held.number)
        self._behind.add(held.number)
        receipt = self.course.update(row["t"], held.number, trained, nbytes=row["bytes"], keeps=row["keeps"])
        seconds = row["t"] - held.time
        self.pace.came(held.client, seconds)
        patient.updates += 1
        patient.seconds += seconds
        patient.worked += row["took"] or 0.0
        patient.staleness += receipt.staleness
        patient.bytes_up += row["bytes"]
        patient.forgot += row["forgot"]

    def _hold(self, row: Row) -> None:
        for number, client, visit, token in row["handed"]:
            self.book.put(Held(number, client, visit, token, row["t"]))
            self.health[client].handed += 1

    def _sent(self, row: Row) -> None:
        for number, letter, node, due, nbytes in row["letters"]:
            held = self.book[number]
            self.book.put(replace(held, letter=letter, node=node, run=row["run"], due=due))
            self.course.bytes_down += nbytes
            self.health[held.client].bytes_down += nbytes

    def checkpoint(self) -> None:
        """Everything, between instants; updates that neither this nor the one before needs are removed."""
        self._count += 1
        state = {
            "events": self._recorder.position(),
            "course": self.course.save(),
            "clients": self.clients.save(),
            "book": self.book.save(),
            "health": self.health.save(),
            "pace": self.pace.save(),
            **{key: getattr(self, name) for key, name in _SAVED.items()},
        }
        self.journal.checkpoint(self._count, state, self._behind)
        self._behind = set()

    def _restore(self, saved: dict[str, Any]) -> None:
        for key, name in _SAVED.items():
            setattr(self, name, saved[key])
        self.course.restore(saved["course"])
        for part in ("clients", "book", "health", "pace"):
            getattr(self, part).load(saved[part])

    def shut(self) -> None:
        """Nothing more is written."""
        self._recorder.close()
        self.journal.close()


#: key of the saved record -> attribute; attributes may be renamed, keys may not
_SAVED = {
    "federation": "federation",
    "began": "began",
    "starts": "starts",
    "ended": "ended",
    "_count": "_count",
}
