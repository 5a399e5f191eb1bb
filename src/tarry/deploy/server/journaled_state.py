"""Journaled state of the driver: the run, its clients and its open tickets. Every change of it is a row of a journal.

    commit(row)    append the row to the journal, then apply it
    checkpoint()   write everything to one file; the rows after it restore the rest

A row says what happened and when, so that applying it again gives the same state to the bit. Events reach listeners,
and tickets reach clients, after the row that they come from is written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.events import Event
from ...core.idle_clients import IdleClients
from ...core.rejections import Reason
from ...core.server import Server
from ...core.tickets import Ticket
from ...engine.budget import Budget
from ...engine.engine import RESTORED, Change, Engine
from ...engine.gate import Gate, GateVerdict
from ...engine.model_monitor import ModelMonitor
from ...record.journal import Journal, Row
from ...record.rows import Mark, Recorder
from ...record.update_archive import UpdateArchive
from ...runs.tracking import Tracking
from ..protocol import ClientReply
from .deadlines import Deadlines
from .open_tickets import OpenTicket, OpenTickets, stored_digest, token_digest
from .registration import Clients
from .stats import FederationStats
from .traces import span

__all__ = ["JournaledState"]


class JournaledState:
    """The state of a driver, in a folder."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        *,
        deadline: float,
        concurrency: int,
        max_tickets: int,
        budget: Budget,
        known: dict[str, str] | None,
        listeners: Sequence[Callable[[Event], None]],
        began: float,
        client: str = "tarry",
        keep_updates: bool = False,
        gate: Gate | None = None,
        monitor: ModelMonitor | None = None,
        tracking: Tracking | None = None,
    ):
        self.folder, self.journal = folder, Journal(folder)
        saved = self.journal.saved
        mark = Mark(saved["events"], saved["events_crc"]) if saved else Mark()
        try:
            self._recorder = Recorder(folder / "events.jsonl", mark)
        except BaseException:
            self.journal.close()
            raise
        self._tracking, own = tracking, () if tracking is None else (tracking,)
        self._listeners: tuple[Callable[[Event], None], ...] = (self._recorder, *own, *listeners)
        self._events: list[Event] = []  # that listeners have not seen yet
        n = server.n_clients
        idle = IdleClients(n, concurrency * max_tickets, range(n))
        self.engine = Engine(
            server, idle, budget, max_tickets=max_tickets, gate=gate, monitor=monitor, listeners=[self._events.append]
        )
        self.clients, self.open_tickets, self.stats = Clients(n, known), OpenTickets(), FederationStats()
        self.deadlines = Deadlines(deadline)
        self._tokens: dict[str, str] = {}  # of tickets that are being handed out, by digest; never on disk
        self.memory_visits: dict[int, int] = {}  # the visit whose memory a client is to use, by client
        self.federation, self.began, self.starts, self.ended = "", began, 0, ""
        self._client, self._archive = client, UpdateArchive(folder) if keep_updates else None
        if self._archive is not None:
            self._archive.begin()
        self._checkpoints = 0
        self._updates_since_checkpoint: set[int] = set()
        self.voided: list[OpenTicket] = []  # tickets that restores took back, for the driver to clear
        try:
            self._recover(saved)
            self.journal.saved = None  # the weights of long ago are not kept for the rest of the federation
        except BaseException:
            self.close()
            raise

    def _recover(self, saved: Any) -> None:
        """Load the checkpoint and apply the rows after it; end what a kill has left halfway."""
        if saved is not None:
            self._load(saved)
        if self._tracking is not None:
            self._tracking.begin(self.engine, (saved or {}).get("tracking"), resumed=saved is not None)
        for row in self.journal.rows():
            self._apply(row, None)
            self._publish()
        if not self.federation:
            n, most = self.engine.server.n_clients, self.engine.max_tickets
            begun = {"federation": secrets.token_hex(8), "began": self.began, "clients": n, "per_client": most}
            begun["client"] = self._client
            self.commit({"op": "begin", "t": 0.0, **begun}, sync=True)
        if self.engine.stop_reason and not self.ended:  # killed right before the row "end"
            self._end()
        if self.engine.in_instant:  # killed in the middle of an instant: it ends now, with no client present
            self.end_instant(self.engine.time, self.engine.changes_to(()))
        if unsent := [t.number for t in self.open_tickets if t.request is None and not t.token]:
            self.commit({"op": "token", "digests": [[number, self._new_token()] for number in unsent]})

    def commit(self, row: Row, *, reply: ClientReply | None = None, sync: bool = False) -> None:
        """Append the row to the journal, then apply it."""
        self.journal.append(row, sync=sync)
        self._apply(row, reply)
        self._publish()
        if self.engine.stop_reason and not self.ended:
            self._end()

    def accept(self, row: Row, reply: ClientReply) -> None:
        """Save an update, then commit its row."""
        with span("accept", ticket=row["number"], bytes=row["bytes"]):
            self.journal.save_update(row["number"], reply.result)
            if self._archive is not None:
                self._archive.save(row["number"], reply.result)
            self.commit({"op": "update", **row}, reply=reply, sync=True)

    def end_instant(self, time: float, changes: Sequence[Change]) -> list[Ticket]:
        """End an instant; its tickets are in the journal before a client is sent one."""
        with span("dispatch"):
            tickets = [ticket for ticket, _ in self.engine.end_instant(time, changes)]
        handed = [[t.number, t.client, t.visit, self._new_token()] for t in tickets]
        row = {"op": "close", "t": time, "changes": [list(c) for c in changes], "handouts": handed}
        self.journal.append(row)
        self._publish()
        self._recorder.flush()
        self._drop_voided(time)
        self._open_handed(row)
        if self.engine.stop_reason:
            self._end()
        return tickets

    def _new_token(self) -> str:
        """Make the token of a ticket; return its digest, which alone is written."""
        token = OpenTickets.new_token()
        digest = token_digest(token)
        self._tokens[digest] = token
        return digest

    def _end(self) -> None:
        self.commit({"op": "end", "t": self.engine.time, "why": self.engine.stop_reason}, sync=True)

    def _publish(self) -> None:
        for event in self._events:
            for listener in self._listeners:
                listener(event)
        self._events.clear()

    def _apply(self, row: Row, reply: ClientReply | None) -> None:
        op, engine = row["op"], self.engine
        if op == "client":
            self.clients.bind(row["name"], row["key"], row["place"], row["node"])
            stats = self.stats[row["place"]]
            stats.name, stats.node = row["name"], row["node"]
        elif op == "release":
            place = self.clients.release(row["name"])
            self.deadlines.forget(place)
            self.memory_visits.pop(place, None)
        elif op == "update":
            self._apply_update(row, reply)
        elif op == "lost":
            ticket = self._close_ticket(row)
            self.stats[ticket.client].count_failure(row["why"], row.get("detail", ""))
            engine.lose(row["t"], ticket.number, row["why"])
        elif op == "rejected":
            ticket, reason = self._close_ticket(row), Reason(row["why"])
            self.stats.count_rejection(reason, ticket.client, row.get("detail", ""))
            engine.reject(row["t"], ticket.number, reason, row.get("sizes", {}))
        elif op == "close":
            tickets = [t for t, _ in engine.end_instant(row["t"], [(c, joins) for c, joins in row["changes"]])]
            assert [[t.number, t.client, t.visit] for t in tickets] == [h[:3] for h in row["handouts"]], "another run"
            self._drop_voided(row["t"])
            self._open_handed(row)
        elif op == "sent":
            self._apply_sent(row)
        elif op == "token":
            for number, digest in row["digests"]:
                token = self._tokens.pop(digest, "")
                self.open_tickets.put(replace(self.open_tickets[number], token=token, digest=digest))
        elif op == "score":
            usual = {name: row[name] for name in ("accuracy", "loss") if row[name] is not None}
            engine.score(row["t"], {**usual, **row.get("metrics", {})}, row.get("health", row["loss"]))
        elif op == "client_eval":
            engine.on_client_eval(row["t"], row["client"], row["metrics"])
        elif op == "restore":
            engine.restore(row["t"])
            self._drop_voided(row["t"])
        elif op == "end":
            self.ended, engine.in_instant = row["why"], False
        elif op == "run":
            self.starts += 1
        else:
            assert op == "begin", op
            self.federation, self.began = row["federation"], row["began"]
            engine.begin()

    def _close_ticket(self, row: Row) -> OpenTicket:
        ticket = self.open_tickets.drop(row["number"])
        assert ticket is not None
        self.stats[ticket.client].last = row["t"]
        return ticket

    def _apply_update(self, row: Row, reply: ClientReply | None) -> None:
        ticket = self._close_ticket(row)
        result = reply.result if reply is not None else self.journal.load_update(ticket.number)
        self._updates_since_checkpoint.add(ticket.number)
        verdict = GateVerdict(None, "", row.get("sizes", {}))
        receipt = self.engine.accept(row["t"], ticket.number, result, nbytes=row["bytes"], verdict=verdict)
        assert receipt.accepted, "results that are rejected have rows of their own"
        if row["keeps_memory"]:
            self.memory_visits[ticket.client] = ticket.visit
        seconds = row["t"] - ticket.time
        self.deadlines.record_duration(ticket.client, seconds)
        stats = self.stats[ticket.client]
        stats.updates += 1
        stats.seconds += seconds
        stats.train_seconds += row["train_seconds"] or 0.0
        stats.staleness += receipt.staleness
        stats.bytes_up += row["bytes"]
        stats.memory_lost += row["memory_lost"]

    def _drop_voided(self, time: float) -> None:
        """Close the tickets that a restore has taken back; `voided` holds them until the driver has seen them."""
        for voided in self.engine.voided:
            ticket = self.open_tickets.drop(voided.number)
            assert ticket is not None
            self.stats[ticket.client].last = time
            self.stats[ticket.client].count_failure(RESTORED)
            self.voided.append(ticket)
        self.engine.voided = []

    def _open_handed(self, row: Row) -> None:
        for number, client, visit, entry in row["handouts"]:
            digest = stored_digest(entry)
            token = self._tokens.pop(digest, "")
            self.open_tickets.put(OpenTicket(number, client, visit, token, row["t"], digest=digest))
            self.stats[client].handouts += 1

    def _apply_sent(self, row: Row) -> None:
        for number, request, node, due, nbytes in row["requests"]:
            ticket = self.open_tickets[number]
            self.open_tickets.put(replace(ticket, request=request, node=node, run=row["run"], due=due))
            self.engine.bytes_down += nbytes
            self.stats[ticket.client].bytes_down += nbytes

    def checkpoint(self) -> None:
        """Save everything, between instants; remove updates that neither this checkpoint nor the last one needs."""
        assert not self.engine.in_instant, "a checkpoint lies between instants"
        self._checkpoints += 1
        mark = self._recorder.sync()
        state = {
            "events": mark.nbytes,
            "events_crc": mark.crc,
            "course": self._save_engine(),
            **{key: getattr(self, name).save() for key, name in _SAVED_PARTS.items()},
            **{key: getattr(self, name) for key, name in _SAVED.items()},
            **({} if self._tracking is None else {"tracking": self._tracking.save()}),
        }
        with span("checkpoint"):
            self.journal.checkpoint(self._checkpoints, state, self._updates_since_checkpoint)
        self._updates_since_checkpoint = set()

    def _save_engine(self) -> dict[str, Any]:
        held = {client: count for client, count in enumerate(self.engine.tickets_held) if count}
        memory_visits = dict(self.memory_visits)
        return {**self.engine.save(), "load": held, "kept": memory_visits, "done": self.engine.stop_reason}

    def _load(self, saved: dict[str, Any]) -> None:
        for key, name in _SAVED.items():
            setattr(self, name, saved[key])
        self.engine.load(saved["course"])
        self.engine.stop_reason = saved["course"]["done"]
        self.memory_visits = dict(saved["course"]["kept"])
        for key, name in _SAVED_PARTS.items():
            getattr(self, name).load(saved[key])

    def close(self) -> None:
        """Close the files and release the folder."""
        try:
            if self._tracking is not None:
                self._tracking.end(None)  # unless it has ended
            self._recorder.close()
        finally:
            self.journal.close()


#: key of the saved record -> attribute; attributes may be renamed, keys may not
_SAVED = {
    "federation": "federation",
    "began": "began",
    "starts": "starts",
    "ended": "ended",
    "_count": "_checkpoints",
}
_SAVED_PARTS = {"clients": "clients", "book": "open_tickets", "health": "stats", "pace": "deadlines"}
