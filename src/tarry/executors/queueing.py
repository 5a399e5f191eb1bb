"""The queue of executors with workers: due order, lookahead, and what happens to the visits of a worker that is lost.

Visits are given to workers in the order in which their results are due, and only a few ahead of need, so that little
training is wasted when a run's budget ends. A worker that is lost is replaced, and its visits are trained again: to the
same bits, because a result depends on its ticket alone.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from ..core.tickets import LocalResult, Ticket

__all__ = ["DEPTH", "QueuedVisit", "QueueingExecutor"]

DEPTH = 2  # visits that a worker holds: one in training and one that waits, so that the worker is never idle
_AHEAD = 6  # results that a worker may be ahead of need, so that it need not wait for the result of another one

WorkerKey = TypeVar("WorkerKey")


class QueuedVisit(NamedTuple):
    """A visit to be trained: when its result is due, its ticket, and the memory of its client."""

    due: float
    ticket: Ticket
    memory: Mapping[str, Tensor]


class QueueingExecutor(ABC, Generic[WorkerKey]):
    """An executor with workers. A subclass starts them, sends visits and listens for results."""

    description = ""
    lives = 3  # workers lost in a row at one visit, or before they could train, at which the run ends with an error

    def __init__(self, workers: int, lookahead: int):
        self._ahead = workers * _AHEAD + lookahead
        self._waiting: dict[int, QueuedVisit] = {}
        self._given: dict[int, QueuedVisit] = {}
        self._queue: list[tuple[float, int]] = []
        self._done: dict[int, LocalResult] = {}
        self._deaths: Counter[int] = Counter()  # workers lost, by the visit they trained

    @abstractmethod
    def _free_worker(self) -> WorkerKey | None:
        """Return the worker that holds the fewest visits, or None where every one holds DEPTH of them."""

    @abstractmethod
    def _send(self, worker: WorkerKey, number: int, visit: QueuedVisit) -> None:
        """Send a visit to a worker."""

    @abstractmethod
    def _listen(self) -> None:
        """Wait until at least one worker answers or is lost, and handle that."""

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        self._wait(ticket.number, QueuedVisit(due, ticket, memory))
        self._feed()

    def save(self) -> Any:
        """Return None: a result depends on its ticket alone, and what was trained ahead is trained again."""
        return None

    def load(self, saved: Any) -> None:
        """Do nothing: whatever was trained ahead is trained again."""

    def collect(self, number: int) -> LocalResult:
        while number not in self._done:
            self._feed(needed=number)
            self._listen()
        result = self._done.pop(number)
        self._feed()
        return result

    def _wait(self, number: int, visit: QueuedVisit) -> None:
        self._waiting[number] = visit
        heapq.heappush(self._queue, (visit.due, number))

    def _feed(self, needed: int = -1) -> None:
        """Send waiting visits to workers evenly, the earliest due first, up to the lookahead or to the needed one."""
        while self._queue and (len(self._given) + len(self._done) < self._ahead or needed in self._waiting):
            worker = self._free_worker()
            if worker is None:
                return
            _, number = heapq.heappop(self._queue)
            self._given[number] = self._waiting.pop(number)
            self._send(worker, number, self._given[number])

    def _finish(self, number: int, result: LocalResult) -> QueuedVisit:
        """Keep a result until it is collected; return the visit."""
        self._done[number] = result
        self._deaths.pop(number, None)
        return self._given.pop(number)

    def _requeue(self, lost: Iterable[int]) -> None:
        """Put the visits of a lost worker back into the queue."""
        for number in lost:
            self._wait(number, self._given.pop(number))

    def _has_lost_its_lives(self, number: int) -> bool:
        """Count a worker that was lost while it trained this visit; return whether that is too many to be chance."""
        self._deaths[number] += 1
        return self._deaths[number] >= self.lives
