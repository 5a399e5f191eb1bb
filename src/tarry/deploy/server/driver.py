"""The loop that drives a server by messages: pull, receive, hand out, push. It never waits for anybody.

What happens is written down before anybody outside could know of it (keeper.py): an update when it is accepted, a
ticket when it is sent. So a driver that is killed at any point begins again where it was. Tickets that went out in this
very run of the link are still waited for; those of an earlier one are lost, and their clients handed new ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time as wall
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from ...core.events import Event
from ...core.method import Horizon
from ...core.server import Server
from ...record.journal import Row
from ..protocol import Answer, Speech
from ..wire import Grid, Over, Refused, Return, Unreachable
from .journaled_state import Keeper
from .open_tickets import Held
from .registration import Door

__all__ = ["Driver", "Terms"]

log = logging.getLogger("tarry")
_LOOK = 1.0  # seconds between looks at who is there
_MARGIN = 60.0  # seconds that a letter outlives the bound
_HELD_UP = 5.0  # seconds between two looks that are the link's fault, or the machine's
_PLACES = 6  # decimals of a second
_UNSENT, _TAKEN_UP = "could not be sent", "the run was taken up again"


@dataclass(frozen=True)
class Terms:
    """How the driver treats clients."""

    deadline: float = 3600.0  # the most seconds that a visit may take
    concurrency: int | None = None  # clients at work at a time; all
    per_client: int = 1  # tickets that a client may hold
    stop_within: float = 60.0  # seconds that a stop waits for what is under way
    eval_every: float = inf
    ask_every: float = inf  # seconds between evaluations on clients
    checkpoint_every: float = 30.0
    poll: float = 0.2


@dataclass(frozen=True)
class _Came:
    """What an instant begins with: an answer that is accepted, or why a ticket brings nothing."""

    held: Held
    answer: Answer | None = None
    why: str = ""
    nbytes: int = 0


class Driver:
    """A server at work in a folder."""

    def __init__(
        self,
        grid: Grid,
        folder: Path,
        server: Server,
        speech: Callable[[str], Speech],
        *,
        terms: Terms,
        horizon: Horizon,
        target: float | None = None,
        evaluate: Callable[[Tensor], tuple[float | None, float]] | None = None,
        known: dict[str, str] | None = None,
        listeners: Sequence[Callable[[Event], None]] = (),
        clock: Callable[[], float] = wall.time,
    ):
        self.grid, self.folder, self.terms, self._horizon = grid, folder, terms, horizon
        self._evaluate, self._clock = evaluate, clock
        self.keeper = keeper = Keeper(
            folder,
            server,
            deadline=terms.deadline,
            concurrency=terms.concurrency or server.n_clients,
            per_client=terms.per_client,
            horizon=horizon,
            target=target,
            known=known,
            listeners=listeners,
            began=clock(),
        )
        self.course, self.clients, self.book = keeper.course, keeper.clients, keeper.book
        self.health, self.pace = keeper.health, keeper.pace
        self.speech = speech(keeper.federation)
        self.door = Door(grid, keeper, greets=self.speech.greets, patience=terms.deadline, note=self.note)
        self._forgotten: set[str] = set()  # letters of nodes that began anew since
        self._pause: dict[int, float] = {}  # clients that are left alone, until when
        self._late: dict[str, Held] = {}  # letters whose ticket is lost, and whose answer may still come
        self._asked: dict[str, int] = {}  # letters that ask for an evaluation → client
        self._looked = -inf
        self._ticked = self.now()  # when the last look began
        self._next_question = terms.ask_every
        self._saved_at = clock()
        self._stopping: float | None = None
        self.ended = keeper.ended
        if not self.ended:
            keeper.do({"op": "run", "t": self.now(), "run": grid.run}, sync=True)
            for h in self.book:
                if h.letter is not None and h.run == grid.run:
                    self.book.put(replace(h, due=self.now() + self.pace.deadline(h.client)))

    def run(
        self,
        stop: Callable[[], bool] = lambda: False,
        *,
        told: Callable[[Driver], None] = lambda _: None,
        sleep: Callable[[float], None] = wall.sleep,
    ) -> str:
        """Until the budget is used, or a stop is asked for and what was under way is in; says which.

        `told` is called about once a second.
        """
        pause, shown = self.terms.poll, -inf
        while not self.ended:
            if stop() and self._stopping is None:
                self._stopping = self.now()
                log.info("stopping: %d tickets are under way", len(self.book))
            began = wall.monotonic()
            try:
                self.tick()
                pause = max(self.terms.poll, wall.monotonic() - began)  # a link that is slow is not asked more often
            except Unreachable as e:
                pause = min(2 * pause + 0.5, 10.0)
                log.warning("the link does not answer (%s); again in %.1f s", e, pause)
            except Over as e:
                log.warning("%s; it can be taken up again", e)
                self.ended = "stopped"
            if self._clock() - shown >= 1.0 and not self.ended:
                shown = self._clock()
                told(self)
            if not self.ended:
                sleep(pause)
        if self.ended != "stopped" and self._evaluate is not None and self._unseen():
            self._score(max(self.course.time, self.course.curve[-1][0] if self.course.curve else 0.0))
        self.keeper.checkpoint()
        told(self)
        return self.ended

    def now(self) -> float:
        """Seconds since the federation began, never before what has happened."""
        return max(round(self._clock() - self.keeper.began, _PLACES), self._soon())

    def _soon(self) -> float:
        return round(self.course.time + 10.0**-_PLACES, _PLACES)

    def tick(self) -> None:
        """One look at everything."""
        now, end = self.now(), self._horizon.time
        if (held_up := now - self._ticked) > _HELD_UP:  # while nobody looked, nobody was late
            for h in self.book:
                self.book.put(replace(h, due=h.due + held_up))
        self._ticked = now
        if end is not None and now >= end:
            self._scores(end, inclusive=True)
            if not self.keeper.ended:
                self.keeper.do({"op": "end", "t": end, "why": "time"}, sync=True)
            self.ended = self.keeper.ended
            return
        if now - self._looked >= _LOOK:
            self._look()
            self._looked = now
        self.door.greet(now)
        self._send([h for h in self.book if h.letter is None])
        came = self._pulled(now)
        if (wakes := self.course.wakes()) <= now and not self.keeper.ended:
            self._instant(wakes, [])
        if not self.keeper.ended and (came or self.course.changes(self._present(now))):
            self._instant(max(now, self._soon()), came)
        self._scores(now, inclusive=True)
        self._ask(now)
        self.ended = self.keeper.ended
        if self._stopping is not None and not self.ended:
            self.ended = "stopped" if not self.book or now - self._stopping >= self.terms.stop_within else ""
        if self._clock() - self._saved_at >= self.terms.checkpoint_every and not self.ended:
            self.keeper.checkpoint()
            self._saved_at = self._clock()

    # -- who is there

    def _present(self, now: float) -> set[int]:
        if self._stopping is not None:
            return set()
        busy = {h.client for h in self._late.values()}
        here = {c for n in self.door.nodes if (c := self.clients.at(n)) is not None}
        return {c for c in here if c not in busy and self._pause.get(c, 0.0) <= now}

    def _look(self) -> None:
        anew = self.door.look()
        if anew:
            self._forgotten.update(h.letter for h in self.book if h.letter and h.node in anew)
            self._late = {i: h for i, h in self._late.items() if h.node not in anew}

    # -- what comes

    def _pulled(self, now: float) -> list[_Came]:
        """What is in for tickets, by their number; everything else is dealt with here."""
        waiting = [h.letter for h in self.book if h.letter and h.run == self.grid.run]
        ids = [*waiting, *self._late, *self.door.waiting, *self._asked]
        came = [c for back in (self.grid.pull(ids) if ids else []) if (c := self._sorted(back, now)) is not None]
        answered = {c.held.number for c in came}
        came += [c for h in self.book if h.number not in answered and (c := self._overdue(h, now)) is not None]
        return sorted(came, key=lambda c: c.held.number)

    def _overdue(self, held: Held, now: float) -> _Came | None:
        if held.letter is None:
            return None
        if not held.letter:
            return _Came(held, why=_UNSENT)
        if held.run != self.grid.run:
            return _Came(held, why=_TAKEN_UP)
        if self.clients.node(held.client) != held.node or held.letter in self._forgotten:
            self._forgotten.discard(held.letter)
            return _Came(held, why="its node began anew")
        if now <= held.due:
            return None
        self._late[held.letter] = held
        return _Came(held, why="deadline")

    def _sorted(self, back: Return, now: float) -> _Came | None:
        if back.letter in self.door.waiting:
            self.door.introduced(now, back)
        elif back.letter in self._asked:
            client = self._asked.pop(back.letter)
            words = [(k[:40], v) for k, v in list(back.words.items())[:16] if isinstance(v, int | float)]
            numbers = {k: float(v) for k, v in words if isfinite(v)}
            if back.error is None:
                self.keeper.do({"op": "heard", "t": now, "client": client, "metrics": numbers})
        elif back.letter in self._late:
            held = self._late.pop(back.letter)
            if back.error is None:
                self.health[held.client].late += 1
                self.pace.came(held.client, now - held.time, late=True)
                self.note("an answer after its deadline", client=held.client, ticket=held.number)
        elif (held_ := self.book.of(back.letter)) is not None:
            return self._looked_at(held_, back)
        return None

    def _looked_at(self, held: Held, back: Return) -> _Came:
        if back.error is not None:
            return _Came(held, why=back.error)
        try:
            self.book.check(held, back.node, back.words if self.speech.tokens else None)
            answer = self.speech.answer(back, self.course.server.tickets[held.number])
        except Refused as e:
            self.note("an answer was refused", why=str(e), client=held.client, node=back.node, ticket=held.number)
            return _Came(held, why="refused")
        return _Came(held, answer, "" if answer.trained.finite else "not finite", back.nbytes)

    # -- instants

    def _instant(self, time: float, came: list[_Came]) -> None:
        self._scores(time, inclusive=False)
        for c in came:
            if not self.keeper.ended:
                self._arrive(time, c)
        if not self.keeper.ended:
            tickets = self.keeper.close(time, self.course.changes(self._present(time)))
            if not self.keeper.ended:
                self._send([self.book[t.number] for t in tickets])

    def _arrive(self, time: float, came: _Came) -> None:
        held, answer = came.held, came.answer
        row: Row = {"t": time, "number": held.number, "bytes": came.nbytes}
        if answer is None or came.why:
            if came.why != _TAKEN_UP:
                self._pause[held.client] = time + self.pace.failed(held.client)
            self.note("a ticket brought nothing", why=came.why, client=held.client, ticket=held.number)
            self.keeper.do({"op": "refused" if came.why == "not finite" else "lost", **row, "why": came.why})
            return
        digest = hashlib.blake2b(answer.trained.delta.numpy().tobytes(), digest_size=8).hexdigest()
        if answer.forgot:
            self.note("a client has forgotten what it kept", client=held.client, ticket=held.number)
        took = answer.took if answer.took is not None and 0 <= answer.took <= time - held.time else None
        told = {"took": took, "keeps": answer.keeps, "forgot": answer.forgot, "digest": digest}
        self.keeper.accept({**row, **told}, answer)

    def _send(self, tickets: list[Held]) -> None:
        if not tickets:
            return
        letters, ttl = [], self.terms.deadline + _MARGIN
        for h in tickets:
            node = self.clients.node(h.client)
            assert node is not None, "only whoever was met is handed work"
            ticket, kept = self.course.server.tickets[h.number], self.course.kept.get(h.client, -1)
            letters.append(self.speech.order(ticket, h, node=node, kept=kept, ttl=ttl))
        ids, now = self.grid.push(letters), self.now()
        sent = [
            [h.number, i or "", letter.node, round(now + self.pace.deadline(h.client), 3), letter.nbytes]
            for h, i, letter in zip(tickets, ids, letters, strict=True)
        ]
        self.keeper.do({"op": "sent", "run": self.grid.run, "letters": sent})

    # -- scores

    def _scores(self, time: float, *, inclusive: bool) -> None:
        """The evaluations due up to that time: the first at 0, then one every so often."""
        if self._evaluate is None:
            return
        while not self.keeper.ended:
            count = len(self.course.curve)
            due = count * self.terms.eval_every if count else 0.0
            if due > time or (due == time and not inclusive):
                return
            self._score(due)

    def _unseen(self) -> bool:
        return self.course.scored != self.course.server.version or not self.course.curve

    def _score(self, time: float) -> None:
        assert self._evaluate is not None
        accuracy, loss = self._evaluate(self.course.server.answer) if self._unseen() else self.course.curve[-1][2:]
        self.keeper.do({"op": "score", "t": time, "accuracy": accuracy, "loss": loss})

    def _ask(self, now: float) -> None:
        """Have clients evaluate the answer on their own examples."""
        if now < self._next_question or self.keeper.ended:
            return
        self._next_question = now + self.terms.ask_every
        there = [(c, n) for c in sorted(self._present(now)) if (n := self.clients.node(c)) is not None]
        weights, ttl = self.course.server.answer, self.terms.deadline
        letters = [self.speech.question(weights, node=n, client=c, ttl=ttl) for c, n in there]
        ids = self.grid.push(letters) if letters else []
        self._asked.update({i: c for (c, _), i in zip(there, ids, strict=True) if i is not None})

    # -- what is said

    def note(self, what: str, **about: Any) -> None:
        """A line of the log: something went wrong with somebody."""
        if "refused" in what:
            self.health.refuse(f"{what}: {about['why']}")
        log.warning("%s: %s", what, ", ".join(f"{k} {v}" for k, v in about.items()))
        line = json.dumps({"t": self.now(), "what": what, **about}) + "\n"
        with open(self.folder / "log.jsonl", "a") as f:
            f.write(line)

    def close(self) -> None:
        self.keeper.shut()
