"""Driver: the loop that runs a server over messages. It pulls replies, applies them, hands out tickets and sends them.

It never waits for a client or a link, and rests only when there is nothing to do. What happens is written to a journal
before it can be seen from outside (journaled_state.py): an update when it is accepted, a ticket when it is handed out.
So a driver that is killed at any point continues where it was. Tickets that were sent in the present run of their link
are still waited for; those of an earlier run are lost, and their clients get new ones.
"""

from __future__ import annotations

import logging
import time as wall
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from ...core.events import Event
from ...core.metric import Scores, other_metrics
from ...core.server import Server
from ...engine.budget import Budget
from ...engine.evaluation import Evaluation
from ...engine.gate import Gate, GateVerdict
from ...engine.model_monitor import ModelMonitor
from ...record.digests import digest_of_vector
from ...record.journal import Row
from ...runs.tracking import Tracking
from ..protocol import Protocol
from ..wire import MessageGrid, RunEnded, Unreachable
from .client_evaluations import ClientEvaluations
from .journaled_state import JournaledState
from .open_tickets import OpenTicket
from .problem_log import ProblemLog
from .registration import Registration
from .replies import EARLIER_RUN, Arrival, Replies, full_reason
from .traces import span

__all__ = ["Driver", "DriverConfig"]

log = logging.getLogger("tarry")
_NODE_INTERVAL = 1.0  # seconds between two looks at which nodes are present
_TTL_MARGIN = 60.0  # seconds that a request outlives the bound of deadlines
_MAX_GAP = 5.0  # seconds; a longer gap between ticks means the link or machine stalled, and extends deadlines
_DECIMALS = 6  # of a second


@dataclass(frozen=True)
class DriverConfig:
    """Settings of the driver; all times are in seconds."""

    deadline: float = 3600.0  # the longest that a visit may take
    concurrency: int | None = None  # clients at work at a time; None: all
    max_tickets_per_client: int = 1
    stop_within: float = 60.0  # the longest that a stop waits for open tickets
    eval_every: float = inf
    client_eval_every: float = inf  # between evaluations on clients
    checkpoint_every: float = 30.0
    release_after: float = 60.0  # absence after which a place without a key may go to another node
    poll: float = 0.2
    client: str = "tarry"  # kind of the clients' app: tarry, plain or legacy
    keep_updates: bool = False  # for a replay of clients that train by code of their own


class Driver:
    """A federated run over messages, in a folder."""

    def __init__(
        self,
        grid: MessageGrid,
        folder: Path,
        server: Server,
        protocol: Callable[[str], Protocol],
        *,
        config: DriverConfig,
        budget: Budget,
        evaluate: Callable[[Tensor], Scores] | None = None,
        gate: Gate | None = None,
        monitor: ModelMonitor | None = None,
        measure: Callable[[Tensor], float] | None = None,
        known: dict[str, str] | None = None,
        listeners: Sequence[Callable[[Event], None]] = (),
        tracking: Tracking | None = None,
        clock: Callable[[], float] = wall.time,
    ):
        self.grid, self.folder, self.config, self._budget, self._clock = grid, folder, config, budget, clock
        self.state = state = JournaledState(
            folder,
            server,
            deadline=config.deadline,
            concurrency=config.concurrency or server.n_clients,
            max_tickets=config.max_tickets_per_client,
            budget=budget,
            known=known,
            listeners=listeners,
            tracking=tracking,
            began=clock(),
            client=config.client,
            keep_updates=config.keep_updates,
            gate=gate,
            monitor=monitor,
        )
        self.engine, self.clients, self.open_tickets = state.engine, state.clients, state.open_tickets
        self.stats, self.deadlines = state.stats, state.deadlines
        self._problems = ProblemLog(folder)
        self._evaluation = Evaluation(self.engine, evaluate, config.eval_every, measure)
        self.protocol = protocol(state.federation)
        self.registration = Registration(
            grid,
            state,
            has_identities=self.protocol.has_identities,
            timeout=config.deadline,
            release_after=config.release_after,
            log_problem=self.log_problem,
        )
        self._replies = Replies(grid, state, self.protocol, log_problem=self.log_problem)
        self._evaluations = ClientEvaluations(
            grid,
            state,
            self.protocol,
            every=config.client_eval_every,
            timeout=config.deadline,
            log_problem=self.log_problem,
        )
        self._backed_off: dict[int, float] = {}  # clients that get no work, until when
        self._nodes_at = -inf
        self._ticked, self._stalls = self.now(), grid.stalls()
        self._saved_at = clock()
        self._stopping: float | None = None
        self.link_problem = ""  # why the link could not be used the last time
        self.ended = state.ended
        if not self.ended:
            self._begin_run()

    def _begin_run(self) -> None:
        try:
            self.state.commit({"op": "run", "t": self.now(), "run": self.grid.run}, sync=True)
        except BaseException:
            self.close()
            raise
        for t in self.open_tickets:
            if t.request is not None and t.run == self.grid.run_of(t.node):
                self.open_tickets.put(replace(t, due=self.now() + self.deadlines.deadline(t.client)))

    def run(
        self,
        stop: Callable[[], bool] = lambda: False,
        *,
        on_progress: Callable[[Driver], None] = lambda _: None,
        sleep: Callable[[float], None] | None = None,
    ) -> str:
        """Run until the budget is used, or until `stop` is true and open tickets are in; return the reason.

        `on_progress` is called about once a second. `sleep` waits between looks; by default until there is news.
        """
        wait, pause, shown = sleep or self.grid.wait, self.config.poll, -inf
        while not self.ended:
            if stop() and self._stopping is None:
                self._stopping = self.now()
                log.info("stopping: %d tickets are under way", len(self.open_tickets))
            try:
                self.tick()
                pause = self.config.poll
            except Unreachable as e:
                self.link_problem = f"the link does not answer ({e})"
                pause = min(2 * pause + 0.5, 10.0)
                log.warning("the link does not answer (%s); again in %.1f s", e, pause)
            except RunEnded as e:
                log.warning("%s; it can be resumed", e)
                self.ended = "stopped"
            if self._clock() - shown >= 1.0 and not self.ended:
                shown = self._clock()
                on_progress(self)
            if not self.ended:
                wait(max(0.0, min(pause, self._next_instant() - self.now())))
        if self.ended != "stopped" and self._evaluation.is_on:
            self._score_last()
        self.state.checkpoint()
        on_progress(self)
        return self.ended

    def _next_instant(self) -> float:
        """Return when the server has something to do even if nothing arrives."""
        end = self._budget.time
        return min(self.engine.next_wakeup(), inf if end is None else end)

    def queue_lengths(self) -> dict[str, int]:
        """Return how much work waits, by its kind, for the metrics."""
        return {
            "tickets to send": sum(t.request is None for t in self.open_tickets),
            "late replies": len(self._replies.late),
            "registrations": len(self.registration.pending),
            "evaluations on clients": len(self._evaluations.pending),
        }

    def _score_last(self) -> None:
        """Score the last version; return to the last healthy one if its loss has exploded, as no instant follows."""
        end = max(self.engine.time, self.engine.curve[-1][0] if self.engine.curve else 0.0)
        if self.engine.is_unscored:
            self._score(end)
        if self.engine.next_restore < inf:
            self.state.commit({"op": "restore", "t": end}, sync=True)
            self._score(end)

    def now(self) -> float:
        """Return the seconds since the federation began, always after the last instant."""
        return max(round(self._clock() - self.state.began, _DECIMALS), self._after_last_instant())

    def _after_last_instant(self) -> float:
        return round(self.engine.time + 10.0**-_DECIMALS, _DECIMALS)

    def tick(self) -> None:
        """Look at nodes, replies, deadlines and scores once, and handle what is there."""
        now, end = self.now(), self._budget.time
        self._note_stalls(now)
        if end is not None and now >= end:
            self._scores(end, inclusive=True)
            if not self.state.ended:
                self.state.commit({"op": "end", "t": end, "why": "time"}, sync=True)
            self.ended = self.state.ended
            return
        if now - self._nodes_at >= _NODE_INTERVAL:
            self._update_nodes()
            self.registration.release_requested(now, self.folder)
            self._nodes_at = now
        self.registration.request_identity(now)
        self._send([t for t in self.open_tickets if t.request is None])
        self._instants(now, self._pull(now))
        self._scores(now, inclusive=True)
        self._evaluations.request(now, lambda: self._present(now))
        self.ended = self.state.ended
        if self._stopping is not None and not self.ended:
            waited = now - self._stopping
            self.ended = "stopped" if not self.open_tickets or waited >= self.config.stop_within else ""
        if self._clock() - self._saved_at >= self.config.checkpoint_every and not self.ended:
            self.state.checkpoint()
            self._saved_at = self._clock()

    def _note_stalls(self, now: float) -> None:
        """Give open tickets the time for which this server, or their link, stood still; note which links do so now."""
        gap = now - self._ticked if now - self._ticked > _MAX_GAP else 0.0
        stalls = self.grid.stalls()
        stalled = {run: seconds - self._stalls.get(run, 0.0) for run, seconds in stalls.items()}
        lost = {run: max(gap, seconds) for run, seconds in stalled.items()}
        self._stalls, self._ticked = stalls, now
        silent = [run for run, seconds in stalled.items() if seconds > 0]
        self.link_problem = f"the link does not answer (run {', '.join(silent)})" if silent else ""
        if gap or any(lost.values()):
            for t in self.open_tickets:
                self.open_tickets.put(replace(t, due=t.due + lost.get(t.run, gap)))

    # -- nodes and clients

    def _present(self, now: float) -> set[int]:
        """Return the clients that may get work."""
        if self._stopping is not None:
            return set()
        here = {c for n in self.registration.nodes if (c := self.clients.at(n)) is not None}
        without_work = self._replies.late_clients() | self.engine.quarantined(now).keys()
        return {c for c in here if c not in without_work and self._backed_off.get(c, 0.0) <= now}

    def _update_nodes(self) -> None:
        restarted = self.registration.update_nodes()
        if restarted:
            self._replies.forget_nodes(restarted)

    def _pull(self, now: float) -> list[Arrival]:
        """Return the tickets that end now; handle all other replies."""
        ids = [*self._replies.requests(), *self.registration.pending, *self._evaluations.pending]
        to_tickets = []
        for reply in self.grid.pull(ids) if ids else []:
            if reply.request in self.registration.pending:
                self.registration.on_identity(now, reply)
            elif reply.request in self._evaluations.pending:
                self._evaluations.on_reply(now, reply)
            else:
                to_tickets.append(reply)
        return self._replies.ends(to_tickets, now)

    # -- instants

    def _instants(self, now: float, arrivals: list[Arrival]) -> None:
        """Work through the instant that the server asked for, and the one of the arrivals and changes seen now."""
        if (wakeup := self.engine.next_wakeup()) <= now and not self.state.ended:
            self._instant(wakeup, [])
        if not self.state.ended and (arrivals or self.engine.changes_to(self._present(now))):
            self._instant(max(now, self._after_last_instant()), arrivals)

    def _instant(self, time: float, arrivals: list[Arrival]) -> None:
        self._scores(time, inclusive=False)
        while arrivals and not self.state.ended:
            self._apply(time, arrivals.pop(0))  # its memory is free before the next tickets are sent
        arrivals.clear()
        if not self.state.ended:
            tickets = self.state.end_instant(time, self.engine.changes_to(self._present(time)))
            if self.state.voided:
                log.warning("the model was restored; %d open tickets are void", len(self.state.voided))
                self._replies.void(self.state.voided)
                self.state.voided = []
            if not self.state.ended:
                self._send([self.open_tickets[t.number] for t in tickets])

    def _apply(self, time: float, arrival: Arrival) -> None:
        ticket, reply = arrival.ticket, arrival.reply
        if ticket.number not in self.engine.server.tickets:  # a restore of the model has taken it back since
            return
        row: Row = {"t": time, "number": ticket.number, "bytes": arrival.nbytes}
        about: dict[str, Any] = {"client": ticket.client, "ticket": ticket.number}
        self._replies.note_end(ticket)
        if reply is None and arrival.rejection is None:
            if arrival.why != EARLIER_RUN:
                self._backed_off[ticket.client] = time + self.deadlines.record_failure(ticket.client)
            self.log_problem("a ticket brought nothing", why=full_reason(arrival.why, arrival.detail), **about)
            self.state.commit({"op": "lost", **row, "why": arrival.why, "detail": arrival.detail})
            return
        verdict = arrival.rejection
        if reply is not None:
            verdict = self.engine.examine(ticket.number, reply.result)
        assert verdict is not None
        if reply is None or verdict.reason is not None:
            self._reject(row, verdict, {**about, "node": ticket.node})
            return
        if reply.memory_lost:
            self.log_problem("a client has forgotten what it kept", **about)
        more = {
            "train_seconds": reply.train_seconds,
            "keeps_memory": reply.keeps_memory,
            "memory_lost": reply.memory_lost,
            "digest": digest_of_vector(reply.result.delta),
            "sizes": dict(verdict.sizes),
        }
        self.state.accept({**row, **more}, reply)

    def _reject(self, row: Row, verdict: GateVerdict, about: Mapping[str, Any]) -> None:
        """Reject an update. Its client gets no work for a while, which grows if that happens again and again."""
        client, time = about["client"], row["t"]
        self._backed_off[client] = time + self.deadlines.record_failure(client)
        self.log_problem("an answer was rejected", why=verdict.reason, detail=verdict.detail, **about)
        sizes = {name: size for name, size in verdict.sizes.items() if isfinite(size)}
        before = self.engine.quarantined(time).get(client)
        why, detail = str(verdict.reason), verdict.detail[:200]
        self.state.commit({"op": "rejected", **row, "why": why, "detail": detail, "sizes": sizes})
        if (until := self.engine.quarantined(time).get(client)) is not None and until != before:
            self.log_problem("a client is quarantined", client=client, seconds=round(until - time, 3))

    def _send(self, tickets: list[OpenTicket]) -> None:
        """Send the tickets one by one, as long as the link has room; the others are sent later."""
        if released := [t for t in tickets if self.clients.node(t.client) is None]:
            unsent = [[t.number, "", 0, self.now(), 0] for t in released]
            self.state.commit({"op": "sent", "run": self.grid.run, "requests": unsent})
            tickets = [t for t in tickets if t not in released]
        for t in tickets:
            node = self.clients.node(t.client)
            assert node is not None, "only registered clients get work"
            if self.grid.has_room(node):
                self._send_one(t, node)

    def _send_one(self, t: OpenTicket, node: int) -> None:
        ticket, memory_visit = self.engine.server.tickets[t.number], self.state.memory_visits.get(t.client, -1)
        ttl = self.config.deadline + _TTL_MARGIN
        request = self.protocol.encode_ticket(ticket, t, node=node, memory_visit=memory_visit, ttl=ttl)
        (id,) = self.grid.push([request])
        due = round(self.now() + self.deadlines.deadline(t.client), 3)
        row = [t.number, id or "", node, due, request.nbytes]
        self.state.commit({"op": "sent", "run": self.grid.run_of(node), "requests": [row]})

    # -- scores

    def _scores(self, time: float, *, inclusive: bool) -> None:
        """Record the scores due up to `time`."""
        for due in self._evaluation.due(time, inclusive=inclusive):
            if self.state.ended:
                return
            self._score(due)
        if self.engine.next_restore < time and not self.state.ended:  # an instant of its own, before the one at `time`
            self._instant(self.engine.next_restore, [])
            self._scores(time, inclusive=inclusive)

    def _score(self, time: float) -> None:
        with span("evaluate"):
            scores, health = self._evaluation.score()
        alarms = self.engine.alarms
        usual = {name: scores.get(name) for name in ("accuracy", "loss")}
        others = other_metrics(scores)
        more = {"metrics": others} if others else {}
        self.state.commit({"op": "score", "t": time, **usual, **more, "health": health})
        if self.engine.alarms > alarms:
            pause = round(self.engine.paused_seconds(time), 3)
            self.log_problem("ALARM: the loss of the global model exploded", loss=health, pause=pause)

    # -- log

    def log_problem(self, what: str, **about: Any) -> None:
        """Write a line to log.jsonl: something went wrong with a client or node."""
        log.warning("%s: %s", what, ", ".join(f"{k} {v}" for k, v in about.items()), extra={"about": about})
        self._problems.append({"t": self.now(), "what": what, **about})

    def close(self) -> None:
        self.state.close()
