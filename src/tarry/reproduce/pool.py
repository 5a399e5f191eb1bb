"""Execution of jobs: one after the other in this process, or several at a time in worker processes.

Both ways yield (job, result) when a job ends; progress goes to `on_progress`.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
from collections import Counter
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..executors.timing import TrialCache
from ..executors.watchdog import TIMEOUT, Watchdog, signals_blocked
from ..runs.parallel import LIVES, end_processes
from ..runs.signals import Interrupted, handled
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
    """Run the jobs in worker processes; if one dies, its job fails and a new process replaces it.

    A process that does not respond is replaced, and its job continues from its newest checkpoint. When the time of the
    queue is over, busy processes are interrupted.
    """
    pool = _JobPool(options, min(options.workers, len(queue.waiting)))
    try:
        pool.feed(queue)
        while pool.busy:
            ready = wait(list(pool.busy), queue.seconds_left())
            if not ready:  # the time is over: busy processes write a checkpoint when the pool closes
                break
            for conn in ready:
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
        self._watchdog = Watchdog(TIMEOUT)
        self._silent: Counter[str] = Counter()  # processes that did not respond, by job
        self.busy: dict[Connection, ReproduceJob] = {}

    def feed(self, queue: Queue) -> None:
        """Send jobs to idle processes."""
        while len(self.busy) < self._most and (job := queue.take(self.busy.values())) is not None:
            self._send(job)

    def _send(self, job: ReproduceJob) -> None:
        while True:
            conn = next((c for c in self._processes if c not in self.busy), None) or self._start()
            try:
                conn.send(job)
            except _DEAD_PROCESS:  # the process died while idle
                self._remove(conn)
                continue
            self.busy[conn] = job
            return

    def message(self, conn: Connection) -> float | str | JobResult:
        """Return the message of a busy process; after a result it is idle."""
        try:
            message: float | str | JobResult = conn.recv()
        except _DEAD_PROCESS:
            message = self._replace(conn)
        if not isinstance(message, float | int | str):
            self.busy.pop(conn, None)
        return message

    def _replace(self, conn: Connection) -> str | JobFailure:
        """Return the failure of a lost process's job; give the job to another process if it did not respond."""
        job, process = self.busy.pop(conn), self._processes[conn]
        silent, code = self._watchdog.release(process), self._remove(conn)
        if not silent:
            return JobFailure(f"its process ended with code {code} and no answer: killed, or out of memory")
        self._silent[job.label] += 1
        if self._silent[job.label] == LIVES:
            return JobFailure(f"{LIVES} processes in a row {silent}")
        self._send(job)
        return f"process {process.pid} ({job.label}) {silent}; another takes its place, and the run resumes"

    def close(self) -> None:
        """End the processes: busy ones write a checkpoint first."""
        self._watchdog.stop()
        for conn in self._processes:
            conn.close()
        end_processes(list(self._processes.values()))

    def _start(self) -> Connection:
        mine, theirs = self._context.Pipe()
        with signals_blocked():  # so that no process is lost sight of
            self._processes[mine] = self._watchdog.start(self._context, _serve, (theirs, self._options), daemon=True)
        theirs.close()
        return mine  # type: ignore[no-any-return]

    def _remove(self, conn: Connection) -> int:
        process = self._processes.pop(conn)
        self._watchdog.release(process)
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
