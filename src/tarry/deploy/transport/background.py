"""BackgroundGrid: a link behind threads. The driver only exchanges messages with queues, and never waits for a client.

    senders     take requests from queues in the order of the driver; the requests of one node stay in order
    looker      asks the link which replies were announced, and which nodes are present
    fetchers    fetch the objects of announced replies and decode them

A reply whose objects have not arrived waits in a queue without memory or a thread, and is looked at again later: at
first after 50 ms, at last every second. So a slow, stopped or dead uploader costs one request a second. A fetcher
starts only while the replies in memory are below a limit: many large replies cannot fill the memory of the server.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..wire import ReplyMessage, Request, RunEnded, Unreachable
from .link import Announcement, EncodedRequest, Link, ReplyLost

__all__ = ["BackgroundGrid", "TransportLimits"]

log = logging.getLogger("tarry")
UNSENT = "could not be sent"
_FIRST_DELAY, _LAST_DELAY = 0.05, 1.0  # seconds until an incomplete reply is looked at again
_NODES_FORGOTTEN = 60.0  # seconds without an answer of the link after which its nodes count as absent
_REQUESTS = 60  # one after the other in a visit, of node and server, and as many for a ticket that waits behind another
_STALL = 5.0  # seconds without an answer after which a link counts as stalled


@dataclass(frozen=True)
class TransportLimits:
    """Bounds of the transport."""

    reply_bytes: int = 64 << 20  # of one reply; a larger one is rejected
    waiting_bytes: int = 256 << 20  # of requests and of replies in memory; at least one of each is allowed
    waiting_requests: int = 32
    replies_at_a_time: int = 4
    senders: int = 12  # each waits for an answer of the link most of the time
    fetchers: int = 8
    look_every: float = 0.1  # seconds between two looks for replies
    nodes_every: float = 1.0
    discard_after: float = 10.0  # seconds that the sender has to upload objects that are not fetched


@dataclass(order=True)
class _Fetch:
    """A reply that is to be fetched."""

    at: float
    number: int
    reply: Announcement = field(compare=False)
    delay: float = field(default=_FIRST_DELAY, compare=False)
    is_incomplete: bool = field(default=False, compare=False)  # objects were missing at the last look
    is_over: bool = field(default=False, compare=False)  # its objects are to be removed from the link


class BackgroundGrid:
    """A MessageGrid over one link, whose methods return at once."""

    def __init__(
        self,
        link: Link,
        limits: TransportLimits | None = None,
        *,
        news: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.link, self._limits, self._clock = link, limits or TransportLimits(), clock
        self._news = news or threading.Event()  # something changed since the driver waited last
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for senders and fetchers
        self._closed = threading.Event()
        self._run_ended: RunEnded | None = None
        self._nodes: dict[int, str] = {}
        self._wanted: frozenset[str] = frozenset()
        self._queues: list[deque[EncodedRequest]] = [deque() for _ in range(self._limits.senders)]
        self._unsent: dict[str, int] = {}  # requests on their way to the link -> bytes
        self._fetches: list[_Fetch] = []
        self._announced: dict[str, _Fetch] = {}  # by request, until the reply is ready
        self._fetching = 0
        self._ready: deque[ReplyMessage] = deque()
        self._ready_ids: set[str] = set()
        self._ready_bytes = 0
        self._latency = 0.0  # seconds that a request took lately
        self._numbers = itertools.count()
        self._was_full = False  # the driver waits for room
        self._answered, self._stalled = clock(), 0.0
        names = ["look", *(f"send-{i}" for i in range(self._limits.senders)),
                 *(f"fetch-{i}" for i in range(self._limits.fetchers))]  # fmt: skip
        self._threads = [threading.Thread(target=self._run_thread, args=(n,), name=n, daemon=True) for n in names]
        for thread in self._threads:
            thread.start()

    # -- for the driver

    @property
    def run(self) -> str:
        return self.link.run

    def run_of(self, node: int) -> str:  # noqa: ARG002
        return self.link.run

    def nodes(self) -> dict[int, str]:
        with self._lock:
            self._check()
            is_lost = self._clock() - self._answered > _NODES_FORGOTTEN
            return {} if is_lost else dict(self._nodes)

    def has_room(self, node: int) -> bool:  # noqa: ARG002
        """Return whether another request may be pushed now."""
        with self._lock:
            few = len(self._unsent) < self._limits.waiting_requests
            small = sum(self._unsent.values()) < self._limits.waiting_bytes
            self._was_full = not (few and small)
            return not self._was_full

    def push(self, requests: Sequence[Request]) -> list[str | None]:
        """Queue the requests; one that the link rejects later gets an error as its reply."""
        encoded = [self.link.encode(r) for r in requests]
        with self._lock:
            self._check()
            for e in encoded:
                self._unsent[e.id] = e.nbytes
                self._queues[e.node % len(self._queues)].append(e)
            self._work.notify_all()
        return [e.id for e in encoded]

    def pull(self, ids: Iterable[str]) -> list[ReplyMessage]:
        """Return the first replies that are in, and forget those to other requests.

        They are a few at a time, so that what they decide is sent before the next ones are worked through.
        """
        with self._lock:
            self._check()
            self._wanted = frozenset(ids)
            replies: list[ReplyMessage] = []
            while self._ready and len(replies) < self._limits.replies_at_a_time:
                reply = self._ready.popleft()
                self._ready_ids.discard(reply.request)
                self._ready_bytes -= reply.nbytes
                replies += [reply] if reply.request in self._wanted else []
            if self._ready:
                self._news.set()
            self._work.notify_all()
            return replies

    def holds(self, request: str) -> bool:
        """Return whether a ticket waits for this server: its request is not sent, or its reply is not fetched."""
        with self._lock:
            fetch = self._announced.get(request)
            is_complete = fetch is not None and not fetch.is_incomplete
            return is_complete or request in self._unsent or request in self._ready_ids

    def delay(self, node: int) -> float:  # noqa: ARG002
        """Return how much longer a visit may take because of the link: for all its requests, with a reserve."""
        with self._lock:
            return _REQUESTS * self._latency

    def stalls(self) -> dict[str, float]:
        """Return the seconds for which the link did not answer, by its run."""
        with self._lock:
            return {self.run: self._stalled + self._present_stall()}

    def wait(self, seconds: float) -> None:
        """Wait until there is something new, at most for so long."""
        self._news.wait(seconds)
        self._news.clear()

    def requests_sent(self) -> dict[str, int]:
        return self.link.requests_sent()

    def links_without_run(self) -> list[int]:
        return []

    def close(self) -> None:
        """End the threads and the connection."""
        self._closed.set()
        with self._lock:
            self._work.notify_all()
        for thread in self._threads:
            thread.join(timeout=2.0)
        self.link.close()

    def _check(self) -> None:
        if self._run_ended is not None:
            raise self._run_ended

    def _present_stall(self) -> float:
        quiet = self._clock() - self._answered
        return quiet if quiet > _STALL else 0.0

    # -- threads

    def _run_thread(self, name: str) -> None:
        """Do a thread's work until the end; wait longer and longer while the link does not answer."""
        kind, _, number = name.partition("-")
        step = {"look": self._look, "send": lambda: self._send_next(int(number)), "fetch": self._fetch_next}[kind]
        delay = 0.0
        while not self._closed.is_set():
            try:
                step()
                delay = 0.0
            except Unreachable as e:
                delay = min(2 * delay + 0.5, 10.0)
                if kind == "look":
                    log.warning("the link does not answer (%s); again in %.1f s", e, delay)
                self._closed.wait(delay)
            except RunEnded as e:
                with self._lock:
                    self._run_ended = e
                    self._news.set()
                return
            except Exception:
                log.exception("error in a thread of the transport")
                self._closed.wait(1.0)

    def _look(self) -> None:
        """Look for announced replies and present nodes."""
        looked, nodes_at = -1.0, -1e9
        while not self._closed.is_set():
            began = self._clock()
            with self._lock:
                ids = self._wanted - self._unsent.keys() - self._announced.keys() - self._ready_ids
            if ids:
                self._on_announced(self.link.announced(ids))
            if began - nodes_at >= self._limits.nodes_every or looked < 0:
                nodes = self.link.nodes()
                nodes_at = self._clock()
                with self._lock:
                    if nodes != self._nodes:
                        self._nodes = nodes
                        self._news.set()
            looked = self._clock()
            with self._lock:
                self._stalled += self._present_stall()
                self._latency = max(looked - began, 0.95 * self._latency)
                self._answered = looked
            self._closed.wait(max(self._limits.look_every, 2 * (looked - began)))

    def _on_announced(self, replies: Sequence[Announcement]) -> None:
        now = self._clock()
        with self._lock:
            for reply in replies:
                fetch = _Fetch(now, next(self._numbers), reply)
                self._announced[reply.request] = fetch
                heapq.heappush(self._fetches, fetch)
            if replies:
                self._work.notify_all()

    def _send_next(self, number: int) -> None:
        queue = self._queues[number]
        with self._work:
            while not queue:
                if self._closed.is_set():
                    return
                self._work.wait()
            request = queue[0]
        try:
            accepted = self.link.send(request)
        except (Unreachable, RunEnded):
            raise
        except Exception:
            log.exception("a request could not be sent")
            accepted = False
        with self._lock:
            queue.popleft()
            del self._unsent[request.id]
            if not accepted:
                self._add_ready(ReplyMessage(request.id, request.node, {}, {}, error=UNSENT))
            if self._was_full or not accepted:
                self._news.set()

    def _fetch_next(self) -> None:
        fetch = self._next_fetch()
        if fetch is None:
            return
        if fetch.is_over:
            with self._lock:
                self._fetching -= 1
            self.link.discard(fetch.reply)
            return
        reply: ReplyMessage | None = None
        try:
            reply = self._fetched(fetch)
            fetch.is_incomplete = reply is None
        except ReplyLost as e:
            reply = ReplyMessage(fetch.reply.request, fetch.reply.node, {}, {}, error=str(e))
        finally:
            self._put_back(fetch, reply)
        if reply is not None and not fetch.is_over:
            self.link.discard(fetch.reply)

    def _next_fetch(self) -> _Fetch | None:
        """Wait for a reply that is due, and for memory for it."""
        limits = self._limits
        with self._work:
            while not self._closed.is_set():
                reserved = self._ready_bytes + (self._fetching + 1) * limits.reply_bytes
                may_start = reserved <= limits.waiting_bytes or not (self._fetching or self._ready_bytes)
                wait = self._fetches[0].at - self._clock() if self._fetches else None
                if may_start and wait is not None and wait <= 0:
                    self._fetching += 1
                    return heapq.heappop(self._fetches)
                self._work.wait(wait if may_start else None)
        return None

    def _fetched(self, fetch: _Fetch) -> ReplyMessage | None:
        """Return the reply, or None if objects have not arrived. What was fetched of it is then dropped."""
        reply = fetch.reply
        if reply.error is not None:
            return ReplyMessage(reply.request, reply.node, {}, {}, reply.error, reply.detail)
        if reply.request not in self._wanted:
            raise ReplyLost("no longer waited for")
        contents: dict[str, bytes] = {}
        size = 0
        for id in reply.objects:
            content = self.link.fetch(id)
            if content is None:
                return None
            contents[id], size = content, size + len(content)
            if size > self._limits.reply_bytes:
                raise ReplyLost(f"a reply of more than {self._limits.reply_bytes:,} bytes")
        return self.link.decode(reply, contents)

    def _put_back(self, fetch: _Fetch, reply: ReplyMessage | None) -> None:
        with self._lock:
            self._fetching -= 1
            if reply is None:
                fetch.at = self._clock() + fetch.delay
                fetch.delay = min(2 * fetch.delay, _LAST_DELAY)
                heapq.heappush(self._fetches, fetch)
            else:
                if fetch.reply.has_others and reply.error is None:
                    fetch.at, fetch.is_over = self._clock() + self._limits.discard_after, True
                    heapq.heappush(self._fetches, fetch)
                self._announced.pop(reply.request, None)
                self._add_ready(reply)
                self._news.set()
            self._work.notify_all()

    def _add_ready(self, reply: ReplyMessage) -> None:
        self._ready.append(reply)
        self._ready_ids.add(reply.request)
        self._ready_bytes += reply.nbytes
