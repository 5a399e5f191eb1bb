"""Jobs done one after the other in this process, or several at a time in processes of their own.

Both give (job, outcome) as each is done; what is heard meanwhile goes to `hear`.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import signal
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..executors.timing import TrialCache
from ..vector.process import tune_malloc
from .jobs import Asked, Job, Queue
from .worker import Failed, Outcome, do, forget

__all__ = ["alone", "several"]

#: a job, and how far it is or what it tells
HearOf = Callable[[Job, float | str], None]
_PATIENCE = 5  # seconds for a process to end by itself
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


def alone(queue: Queue, asked: Asked, hear: HearOf) -> Generator[tuple[Job, Outcome]]:
    """One after the other in this process."""
    trials = TrialCache()
    while (job := queue.take()) is not None:
        yield job, do(job, asked, lambda said, job=job: hear(job, said), trials)  # type: ignore[misc]
        forget()


def several(queue: Queue, asked: Asked, hear: HearOf) -> Generator[tuple[Job, Outcome]]:
    """In processes of their own; one that dies fails its job, and another takes its place."""
    pool = _Pool(asked, min(asked.workers, len(queue.waiting)))
    try:
        pool.feed(queue)
        while pool.busy:
            for conn in wait(list(pool.busy)):
                assert isinstance(conn, Connection)
                job, message = pool.busy[conn], pool.message(conn)
                if isinstance(message, float | int | str):
                    hear(job, message)
                else:
                    yield job, message
            pool.feed(queue)  # after an outcome is dealt with: it may have added to the queue
    finally:
        pool.close()


class _Pool:
    """Processes, which are started afresh: a GPU's memory and this process's are not shared."""

    def __init__(self, asked: Asked, most: int):
        self._context: Any = mp.get_context("spawn")
        self._asked, self._most = asked, most
        self._processes: dict[Connection, Any] = {}
        self.busy: dict[Connection, Job] = {}

    def feed(self, queue: Queue) -> None:
        """Give jobs to those that have none."""
        while len(self.busy) < self._most and (job := queue.take(self.busy.values())) is not None:
            while True:
                conn = next((c for c in self._processes if c not in self.busy), None) or self._start()
                try:
                    conn.send(job)
                except _GONE:  # while it had nothing to do
                    self._bury(conn)
                    continue
                self.busy[conn] = job
                break

    def message(self, conn: Connection) -> float | str | Outcome:
        """What a busy one has to say; after an outcome it is free."""
        try:
            said: float | str | Outcome = conn.recv()
        except _GONE:
            code = self._bury(conn)
            said = Failed(f"its process ended with code {code} and no answer: killed, or out of memory")
        if not isinstance(said, float | int | str):
            del self.busy[conn]
        return said

    def close(self) -> None:
        """Who has nothing to do ends by itself, and leaves nothing behind; others are told to."""
        for conn, process in self._processes.items():
            if conn in self.busy:
                process.terminate()
            conn.close()
        for process in self._processes.values():
            process.join(_PATIENCE)
            process.terminate()
            process.join()

    def _start(self) -> Connection:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._asked), daemon=True)
        process.start()
        theirs.close()
        self._processes[mine] = process
        return mine  # type: ignore[no-any-return]

    def _bury(self, conn: Connection) -> int:
        process = self._processes.pop(conn)
        conn.close()
        process.join()
        code: int = process.exitcode
        return code


def _serve(conn: Connection, asked: Asked) -> None:
    """A worker's life: do what comes until the pipe closes, also when the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    tune_malloc()
    trials = TrialCache()
    with contextlib.suppress(*_GONE):
        while True:
            job: Job = conn.recv()
            conn.send(do(job, asked, conn.send, trials))
            forget()
