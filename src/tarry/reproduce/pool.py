"""Execution of jobs: one after the other in this process, or several at a time in worker processes.

Both ways yield (job, result) when a job ends; progress goes to `on_progress`.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..executors.timing import TrialCache
from ..runs.parallel import end_processes
from ..runs.signals import Interrupted, handled, held_back
from ..vector.process import tune_malloc
from .jobs import Queue, ReproduceJob
from .options import ReproduceOptions
from .worker import JobFailure, JobResult, do, forget

__all__ = ["run_parallel", "run_serial"]

#: called with a job and its progress (a share) or a message
OnJobProgress = Callable[[ReproduceJob, float | str], None]
_DEAD_PROCESS = (EOFError, BrokenPipeError, ConnectionResetError)


def run_serial(
    queue: Queue, options: ReproduceOptions, on_progress: OnJobProgress
) -> Generator[tuple[ReproduceJob, JobResult]]:
    """Run the jobs one after the other in this process."""
    trials = TrialCache()
    while (job := queue.take()) is not None:
        yield job, do(job, options, lambda progress, job=job: on_progress(job, progress), trials)  # type: ignore[misc]
        forget()


def run_parallel(
    queue: Queue, options: ReproduceOptions, on_progress: OnJobProgress
) -> Generator[tuple[ReproduceJob, JobResult]]:
    """Run the jobs in worker processes; if one dies, its job fails and a new process replaces it."""
    pool = _JobPool(options, min(options.workers, len(queue.waiting)))
    try:
        pool.feed(queue)
        while pool.busy:
            for conn in wait(list(pool.busy)):
                assert isinstance(conn, Connection)
                job, message = pool.busy[conn], pool.message(conn)
                if isinstance(message, float | int | str):
                    on_progress(job, message)
                else:
                    yield job, message
            pool.feed(queue)  # after the caller has handled the result, which may add a job
    finally:
        pool.close()


class _JobPool:
    """Worker processes by `spawn`, which share no memory with this one."""

    def __init__(self, options: ReproduceOptions, most: int):
        self._context: Any = mp.get_context("spawn")
        self._options, self._most = options, most
        self._processes: dict[Connection, Any] = {}
        self.busy: dict[Connection, ReproduceJob] = {}

    def feed(self, queue: Queue) -> None:
        """Send jobs to idle processes."""
        while len(self.busy) < self._most and (job := queue.take(self.busy.values())) is not None:
            while True:
                conn = next((c for c in self._processes if c not in self.busy), None) or self._start()
                try:
                    conn.send(job)
                except _DEAD_PROCESS:  # the process died while idle
                    self._remove(conn)
                    continue
                self.busy[conn] = job
                break

    def message(self, conn: Connection) -> float | str | JobResult:
        """Return the message of a busy process; after a result it is idle."""
        try:
            message: float | str | JobResult = conn.recv()
        except _DEAD_PROCESS:
            code = self._remove(conn)
            message = JobFailure(f"its process ended with code {code} and no answer: killed, or out of memory")
        if not isinstance(message, float | int | str):
            del self.busy[conn]
        return message

    def close(self) -> None:
        """End the processes: busy ones write a checkpoint first."""
        for conn in self._processes:
            conn.close()
        end_processes(list(self._processes.values()))

    def _start(self) -> Connection:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._options), daemon=True)
        with held_back():
            process.start()
        theirs.close()
        self._processes[mine] = process
        return mine  # type: ignore[no-any-return]

    def _remove(self, conn: Connection) -> int:
        process = self._processes.pop(conn)
        conn.close()
        process.join()
        code: int = process.exitcode
        return code


def _serve(conn: Connection, options: ReproduceOptions) -> None:
    """Run jobs until the pipe closes, which happens also when the parent is killed."""
    torch.set_num_threads(1)
    tune_malloc()
    trials = TrialCache()
    with contextlib.suppress(*_DEAD_PROCESS, Interrupted), handled(child=True):
        while True:
            job: ReproduceJob = conn.recv()
            conn.send(do(job, options, conn.send, trials))
            forget()
