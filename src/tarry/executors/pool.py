"""Training in processes: one thread each, weights through shared memory.

Jobs are given out in the order they are due and only a few ahead of need, so that little is trained in vain when a
budget ends. Weights and deltas never pass through a pipe. The processes are forked, so a task may hold any Python
object; where fork is not to be had (or CUDA is in use) they are spawned and the task must pickle. One that is lost is
replaced, and what it had is trained again: to the same bits, for an outcome depends on its job alone.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import multiprocessing as mp
import queue
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import WorkerDied
from ..core.layout import Layout
from ..core.local_rule import LocalRule
from ..core.task import Shards, Task
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from ..vector.process import tune_malloc
from .inline import RemoteError

__all__ = ["Pool"]

log = logging.getLogger("tarry")

_DEPTH = 2  # jobs a worker has at hand: one in work, one waiting, so that it never idles
_ALIGNED = 16  # numbers: rows of shared memory begin at multiples of a cache line, as tensors do
_AHEAD = 6  # jobs a worker may be ahead of need, so that one that waits for its neighbour's result never idles either
_LIVES = 3  # processes that may be lost at one job, or one after the other before they had any, until it is no accident


@dataclass(frozen=True)
class _Setup:
    """What a worker needs once."""

    module: nn.Module
    layout: Layout
    task: Task
    rule: LocalRule
    work: LocalWork
    seed: int
    bf16: bool
    inbox: Tensor  # [slot, size] weights sent
    outbox: Tensor  # [slot, size] deltas


def _shared(t: Tensor) -> Tensor:
    return t.share_memory_()  # type: ignore[no-untyped-call,no-any-return]


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """For the pipe: plain arrays, not handles of shared memory."""
    return {k: v.numpy() for k, v in tensors.items()}


def _tensors(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    return {k: torch.from_numpy(np.array(v)) for k, v in arrays.items()}


def _read(conn: Connection, jobs: queue.SimpleQueue[Any]) -> None:
    """Empty the pipe at once, so that the parent never waits to send while this worker waits to answer."""
    with contextlib.suppress(EOFError, OSError):
        while (message := conn.recv()) is not None:
            jobs.put(message)
    jobs.put(None)


def _serve(conn: Connection, others: list[Connection], setup: _Setup) -> None:
    """A worker's life: train what comes until the pipe closes (also when the parent was killed)."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    tune_malloc()
    bound = FlatModel(setup.module, setup.layout, setup.task, setup.work.optimiser, bf16=setup.bf16)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(conn, jobs), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while (message := jobs.get()) is not None:
            slot, number, client, visit, version, payload, memory = message
            job = VisitJob(number, client, visit, setup.inbox[slot], _tensors(payload), _tensors(memory), version)
            try:
                out = train(job, bound, rule=setup.rule, work=setup.work, seed=setup.seed)
            except Exception as e:
                conn.send((slot, number, RemoteError.from_exception(e)))
                continue
            setup.outbox[slot].copy_(out.delta)
            conn.send((slot, number, (*out[1:5], _plain(out.extras), _plain(out.memory), _plain(out.notes))))


class _Given(NamedTuple):
    """A job: when it is due, its ticket, what its client kept, and whose it is (nobody's yet: -1)."""

    due: float
    ticket: Ticket
    memory: Mapping[str, Tensor]
    worker: int = -1


class Pool:
    """An executor of `workers` processes; `lookahead` allows more jobs to be trained ahead of need than it takes."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        task: Task,
        *,
        rule: LocalRule,
        work: LocalWork,
        seed: int,
        workers: int,
        lookahead: int = 0,
        bf16: bool = False,
    ):
        self._ahead = workers * _AHEAD + lookahead
        dtype = next(p.dtype for p in module.parameters() if p.requires_grad)
        wide = -(-layout.size // _ALIGNED) * _ALIGNED  # a sum's last bit may depend on where it begins in memory
        boxes = _shared(torch.zeros(2, workers * _DEPTH, wide, dtype=dtype))[..., : layout.size]
        self._inbox, self._outbox = boxes[0], boxes[1]
        if isinstance(task.clients, Shards):
            _shared(task.clients.x)
            _shared(task.clients.y)
        self._setup = _Setup(module, layout, task, rule, work, seed, bf16, boxes[0], boxes[1])
        self._forked = sys.platform.startswith("linux") and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._free: dict[int, list[int]] = {}
        self._waiting: dict[int, _Given] = {}
        self._given: dict[int, _Given] = {}
        self._queue: list[tuple[float, int]] = []
        self._done: dict[int, LocalResult] = {}
        self._deaths: Counter[int] = Counter()  # by job
        self._idle_deaths: Counter[int] = Counter()  # by worker: of those that had no job, since the last answer
        self.description = ""
        self._conns: dict[int, Connection] = {}
        self._processes: dict[int, Any] = {}
        for worker in range(workers):
            self._start(worker)

    def _start(self, worker: int) -> None:
        """A process that closes what it inherits of its siblings' pipes: each breaks when one of its two ends is lost.

        Also in the middle of a run it may be forked: threads that we have wait for work then, and hold no lock.
        """
        context: Any = mp.get_context("fork" if self._forked else "spawn")
        mine, theirs = context.Pipe()
        others = [*self._conns.values(), mine] if self._forked else []
        process = context.Process(target=_serve, args=(theirs, others, self._setup), daemon=True)
        process.start()
        theirs.close()
        self._conns[worker], self._processes[worker] = mine, process
        self._free[worker] = [worker * _DEPTH + d for d in range(_DEPTH)]

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        self._wait(ticket.number, _Given(due, ticket, memory))
        self._feed()

    def _wait(self, number: int, job: _Given) -> None:
        self._waiting[number] = job
        heapq.heappush(self._queue, (job.due, number))

    def collect(self, number: int) -> LocalResult:
        while number not in self._done:
            self._feed(needed=number)
            self._listen()
        trained = self._done.pop(number)
        self._feed()
        return trained

    def _feed(self, needed: int = -1) -> None:
        """Give waiting jobs to workers with a free slot, the earliest due first, evenly."""
        while self._queue and (len(self._given) + len(self._done) < self._ahead or needed in self._waiting):
            worker = max(self._free, key=lambda i: len(self._free[i]))
            if not self._free[worker]:
                return
            slot = self._free[worker].pop()
            _, number = heapq.heappop(self._queue)
            job = self._given[number] = self._waiting.pop(number)._replace(worker=worker)
            t = job.ticket
            self._inbox[slot].copy_(t.sent)
            message = (slot, number, t.client, t.visit, t.version, _plain(t.payload), _plain(job.memory))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # lost: what it answered is heard first
                self._conns[worker].send(message)

    def _listen(self) -> None:
        """Wait until at least one worker answers or is lost."""
        whose = {conn: worker for worker, conn in self._conns.items()}
        for conn in wait(list(whose)):
            assert isinstance(conn, Connection)
            worker = whose[conn]
            try:
                slot, number, answer = conn.recv()
            except (EOFError, OSError):  # OSError: in the middle of an answer
                self._replace(worker)
                continue
            if isinstance(answer, RemoteError):
                answer.reraise("a worker")
            carried = (_tensors(tensors) for tensors in answer[4:])
            self._done[number] = LocalResult(self._outbox[slot].clone(), *answer[:4], *carried)
            self._free[worker].append(slot)
            del self._given[number], self._deaths[number]
            self._idle_deaths.clear()

    def _replace(self, worker: int) -> None:
        """A worker is lost: another takes its place, and what it was given is given out again."""
        self._conns.pop(worker).close()
        process = self._processes[worker]
        _end(process, 5)
        lost = {number: job for number, job in self._given.items() if job.worker == worker}
        for number in lost:
            self._wait(number, self._given.pop(number))
        self._count(worker, lost, f"(code {process.exitcode})")
        log.warning(
            "training process %d was lost (code %d); another takes its place, and trains again what it had",
            process.pid,
            process.exitcode,
        )
        self._start(worker)

    def _count(self, worker: int, lost: Mapping[int, _Given], how: str) -> None:
        """Give up where it is no accident."""
        number = next(iter(lost), None)  # the first was in work; the others had not begun
        deaths, whose = (self._idle_deaths, worker) if number is None else (self._deaths, number)
        deaths[whose] += 1
        if deaths[whose] < _LIVES:
            return
        when = "before they had anything to train"
        if number is not None:
            t = lost[number].ticket
            when = f"while they trained client {t.client} (visit {t.visit})"
        fewer = " Fewer --workers take less of it" if len(self._free) > 1 else ""
        raise WorkerDied(
            f"{_LIVES} training processes in a row were lost {how} {when}: killed, or out of memory?{fewer}"
        )

    def close(self) -> None:
        for conn in self._conns.values():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                conn.send(None)
            conn.close()
        for process in self._processes.values():
            _end(process, 10)
        self._processes.clear()
        self._conns.clear()


def _end(process: Any, patience: float) -> None:
    """Wait so many seconds for it to end by itself."""
    process.join(timeout=patience)
    if process.is_alive():
        process.kill()
        process.join()
