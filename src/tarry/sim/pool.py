"""Training in processes: one thread each, weights through shared memory.

Jobs are given out in the order they are due and only a few ahead of need, so that little is trained in vain when a
budget ends. Weights and deltas never pass through a pipe. The processes are forked, so a task may hold any Python
object; where fork is not to be had (or CUDA is in use) they are spawned and the task must pickle.
"""

from __future__ import annotations

import contextlib
import heapq
import multiprocessing as mp
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.client import Bound, Job, Trained, Work, train
from ..core.errors import WorkerDied
from ..core.layout import Layout
from ..core.local import LocalRule
from ..core.process import keep_memory
from ..core.task import Shards, Task
from ..core.ticket import Ticket
from .executor import Failed

__all__ = ["Pool"]

_DEPTH = 2  # jobs a worker has at hand: one in work, one waiting, so that it never idles
_ALIGNED = 16  # numbers: rows of shared memory begin at multiples of a cache line, as tensors do
_AHEAD = 6  # jobs a worker may be ahead of need, so that one that waits for its neighbour's result never idles either


@dataclass(frozen=True)
class _Setup:
    """What a worker needs once."""

    module: nn.Module
    layout: Layout
    task: Task
    rule: LocalRule
    work: Work
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
    keep_memory()
    bound = Bound(setup.module, setup.layout, setup.task, setup.work.optimiser, bf16=setup.bf16)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(conn, jobs), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while (message := jobs.get()) is not None:
            slot, number, client, visit, version, payload, memory = message
            job = Job(number, client, visit, setup.inbox[slot], _tensors(payload), _tensors(memory), version)
            try:
                out = train(job, bound, rule=setup.rule, work=setup.work, seed=setup.seed)
            except Exception as e:
                conn.send((slot, number, Failed.by(e)))
                continue
            setup.outbox[slot].copy_(out.delta)
            conn.send((slot, number, (*out[1:5], _plain(out.extras), _plain(out.memory), _plain(out.notes))))


class Pool:
    """An executor of `workers` processes; `lookahead` allows more jobs to be trained ahead of need than it takes."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        task: Task,
        *,
        rule: LocalRule,
        work: Work,
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
        setup = _Setup(module, layout, task, rule, work, seed, bf16, boxes[0], boxes[1])
        forked = sys.platform.startswith("linux") and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        context: Any = mp.get_context("fork" if forked else "spawn")
        self._conns: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(workers):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, [*self._conns, mine] if forked else [], setup), daemon=True
            )
            process.start()
            theirs.close()
            self._conns.append(mine)
            self._processes.append(process)
        self._free = {i: [i * _DEPTH + d for d in range(_DEPTH)] for i in range(workers)}
        self._waiting: dict[int, tuple[Ticket, Mapping[str, Tensor]]] = {}
        self._queue: list[tuple[float, int]] = []
        self._out = 0
        self._done: dict[int, Trained] = {}
        self.told = ""

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        self._waiting[ticket.number] = (ticket, memory)
        heapq.heappush(self._queue, (due, ticket.number))
        self._feed()

    def collect(self, number: int) -> Trained:
        while number not in self._done:
            self._feed(needed=number)
            self._listen()
        trained = self._done.pop(number)
        self._feed()
        return trained

    def _feed(self, needed: int = -1) -> None:
        """Give waiting jobs to workers with a free slot, the earliest due first, evenly."""
        while self._queue and (self._out + len(self._done) < self._ahead or needed in self._waiting):
            worker = max(self._free, key=lambda i: len(self._free[i]))
            if not self._free[worker]:
                return
            slot = self._free[worker].pop()
            _, number = heapq.heappop(self._queue)
            ticket, memory = self._waiting.pop(number)
            self._inbox[slot].copy_(ticket.sent)
            who = (ticket.client, ticket.visit, ticket.version)
            message = (slot, number, *who, _plain(ticket.payload), _plain(memory))
            try:
                self._conns[worker].send(message)
            except (BrokenPipeError, ConnectionResetError):
                raise self._dead(worker) from None
            self._out += 1

    def _listen(self) -> None:
        """Wait until at least one worker answers."""
        for conn in wait(self._conns):
            worker = self._conns.index(conn)  # type: ignore[arg-type]
            try:
                slot, number, answer = self._conns[worker].recv()
            except (EOFError, ConnectionResetError):
                raise self._dead(worker) from None
            if isinstance(answer, Failed):
                answer.tell("a worker")
            carried = (_tensors(tensors) for tensors in answer[4:])
            self._done[number] = Trained(self._outbox[slot].clone(), *answer[:4], *carried)
            self._free[worker].append(slot)
            self._out -= 1

    def _dead(self, worker: int) -> WorkerDied:
        process = self._processes[worker]
        process.join(timeout=5)
        return WorkerDied(
            f"training process {process.pid} ended with code {process.exitcode} and no answer: killed or out of memory?"
        )

    def close(self) -> None:
        for conn in self._conns:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                conn.send(None)
            conn.close()
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes.clear()
        self._conns.clear()
