"""Pool: trains visits in processes of one thread each, with weights in shared memory.

Weights and deltas never pass through a pipe. The processes are forked, so a task may hold any Python object; where fork
does not exist (or CUDA is in use) they are spawned, and the task must pickle. A process that is lost, or no longer
responds (watchdog), is replaced.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing as mp
import queue
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import StorageError, WorkerDied, first_line
from ..core.layout import Layout
from ..core.local_rule import LocalRule
from ..core.shards import Shards
from ..core.task import Task
from ..core.tickets import LocalResult, VisitJob
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from ..vector.process import tune_malloc
from .base import RemoteError
from .queueing import DEPTH, QueuedVisit, QueueingExecutor
from .watchdog import TIMEOUT, Watchdog, end_within, unblock_signals

__all__ = ["Pool"]

log = logging.getLogger("tarry")

#: signals that a terminal sends to all processes, and that the parent handles
_OF_THE_PARENT = (signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
_HANGS = "stopped, or in code that keeps Python's lock? --worker-timeout 0 waits for ever"
_ALIGNED = 16  # numbers: rows of shared memory begin at multiples of a cache line, as tensors do


@dataclass(frozen=True)
class _PoolSetup:
    """The arguments that a worker starts with."""

    module: nn.Module
    layout: Layout
    task: Task
    rule: LocalRule
    work: LocalWork
    seed: int
    bf16: bool
    inbox: Tensor  # [slot, size] weights sent
    outbox: Tensor  # [slot, size] deltas


def _share(t: Tensor) -> Tensor:
    try:
        return t.share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except RuntimeError as e:
        raise StorageError(
            f"shared memory of {t.nbytes:,} bytes for --workers: it cannot be made ({first_line(e)}); free space in"
            " /dev/shm and raise the limit on file sizes (ulimit -f)"
        ) from e


def _to_numpy(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return numpy arrays for the pipe; tensors would be sent as handles of shared memory."""
    return {k: v.numpy() for k, v in tensors.items()}


def _tensors(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    return {k: torch.from_numpy(np.array(v)) for k, v in arrays.items()}


def _read(conn: Connection, jobs: queue.SimpleQueue[Any]) -> None:
    """Move messages from the pipe into a queue at once: else parent and worker could both wait to send."""
    with contextlib.suppress(EOFError, OSError):
        while (message := conn.recv()) is not None:
            jobs.put(message)
    jobs.put(None)


def _serve(conn: Connection, others: list[Connection], setup: _PoolSetup) -> None:
    """Main loop of a worker: train visits until the pipe closes, which it also does when the parent is killed."""
    for other in others:
        other.close()
    for number in _OF_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    unblock_signals()
    torch.set_num_threads(1)
    tune_malloc()
    model = FlatModel(setup.module, setup.layout, setup.task, setup.work.optimizer, bf16=setup.bf16)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(conn, jobs), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while (message := jobs.get()) is not None:
            slot, number, client, visit, payload, memory, *counted = message
            job = VisitJob(number, client, visit, setup.inbox[slot], _tensors(payload), _tensors(memory), *counted)
            try:
                out = train(job, model, rule=setup.rule, work=setup.work, seed=setup.seed)
            except Exception as e:
                conn.send((slot, number, RemoteError.from_exception(e)))
                continue
            setup.outbox[slot].copy_(out.delta)
            conn.send((slot, number, (*out[1:5], _to_numpy(out.extras), _to_numpy(out.memory), _to_numpy(out.notes))))


class Pool(QueueingExecutor[int]):
    """Executor of `workers` processes; `lookahead`: results trained ahead beyond what keeps workers busy.

    `timeout`: seconds without a sign of a process, after which it is replaced; 0: never.
    """

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
        timeout: float = TIMEOUT,
    ):
        super().__init__(workers, lookahead)
        dtype = next(p.dtype for p in module.parameters() if p.requires_grad)
        wide = -(-layout.size // _ALIGNED) * _ALIGNED  # the last bit of a sum may depend on its place in memory
        boxes = _share(torch.zeros(2, workers * DEPTH, wide, dtype=dtype))[..., : layout.size]
        self._inbox, self._outbox = boxes[0], boxes[1]
        if isinstance(task.clients, Shards):
            _share(task.clients.x)
            _share(task.clients.y)
        self._setup = _PoolSetup(module, layout, task, rule, work, seed, bf16, boxes[0], boxes[1])
        self._forked = sys.platform.startswith("linux") and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._free: dict[int, list[int]] = {}  # slots of the boxes, by worker
        self._worker_of: dict[int, int] = {}  # by visit
        self._idle_deaths: Counter[int] = Counter()  # processes lost without a visit since the last result, by worker
        self._conns: dict[int, Connection] = {}
        self._processes: dict[int, Any] = {}
        self._watchdog = Watchdog(timeout)
        for worker in range(workers):
            self._start(worker)

    def _start(self, worker: int) -> None:
        """Start a process. It closes the pipe ends of its siblings that it inherits: a pipe must break when one of its
        two ends is lost.

        Forking in the middle of a run is safe: the threads of this process wait for work then and hold no lock.
        """
        context: Any = mp.get_context("fork" if self._forked else "spawn")
        mine, theirs = context.Pipe()
        others = [*self._conns.values(), mine] if self._forked else []
        process = self._watchdog.start(context, _serve, (theirs, others, self._setup), daemon=True)
        theirs.close()
        self._conns[worker], self._processes[worker] = mine, process
        self._free[worker] = [worker * DEPTH + d for d in range(DEPTH)]

    def _free_worker(self) -> int | None:
        worker = max(self._free, key=lambda i: len(self._free[i]))
        return worker if self._free[worker] else None

    def _send(self, worker: int, number: int, visit: QueuedVisit) -> None:
        slot, t = self._free[worker].pop(), visit.ticket
        self._worker_of[number] = worker
        self._inbox[slot].copy_(t.sent)
        carried = _to_numpy(t.payload), _to_numpy(visit.memory)
        message = (slot, number, t.client, t.visit, *carried, t.version, t.time)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # lost: first read what it answered before
            self._conns[worker].send(message)

    def _listen(self) -> None:
        worker_of = {conn: worker for worker, conn in self._conns.items()}
        for conn in wait(list(worker_of)):
            assert isinstance(conn, Connection)
            worker = worker_of[conn]
            try:
                slot, number, answer = conn.recv()
            except (EOFError, OSError):  # OSError: in the middle of an answer
                self._replace(worker)
                continue
            if isinstance(answer, RemoteError):
                answer.reraise("a worker")
            carried = (_tensors(tensors) for tensors in answer[4:])
            self._finish(number, LocalResult(self._outbox[slot].clone(), *answer[:4], *carried))
            self._free[worker].append(slot)
            del self._worker_of[number]
            self._idle_deaths.clear()

    def _replace(self, worker: int) -> None:
        """Start a process in the place of a lost one, and put its visits back into the queue."""
        self._conns.pop(worker).close()
        process = self._processes[worker]
        silent = self._watchdog.release(process)
        end_within([process], 5)
        lost = [number for number in self._given if self._worker_of[number] == worker]
        self._requeue(lost)
        how = silent or f"was lost (code {process.exitcode})"
        if silent:
            self._count(worker, lost, f"{silent} %s: {_HANGS}")
        else:
            fewer = " Fewer --workers take less of it" if len(self._free) > 1 else ""
            self._count(worker, lost, f"were lost (code {process.exitcode}) %s: killed, or out of memory?{fewer}")
        log.warning("training process %d %s; another takes its place, and trains again what it had", process.pid, how)
        self._start(worker)

    def _count(self, worker: int, lost: Sequence[int], text: str) -> None:
        """Raise WorkerDied where so many processes in a row were lost that it is no chance; `text`: how %s and why."""
        if lost:  # the worker trained the first; the others had not begun
            if not self._has_lost_its_lives(lost[0]):
                return
            t = self._waiting[lost[0]].ticket
            when = f"while they trained client {t.client} (visit {t.visit})"
        else:
            self._idle_deaths[worker] += 1
            if self._idle_deaths[worker] < self.lives:
                return
            when = "before they had anything to train"
        raise WorkerDied(f"{self.lives} training processes in a row {text % when}")

    def close(self) -> None:
        self._watchdog.stop()
        for worker, process in self._processes.items():
            if len(self._free[worker]) < DEPTH:
                process.kill()  # what it trains is no longer needed, and may take long
        for conn in self._conns.values():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                conn.send(None)
            conn.close()
        end_within(self._processes.values(), 10)
        self._processes.clear()
        self._conns.clear()
