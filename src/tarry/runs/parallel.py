"""The runs of a comparison in parallel processes of this machine."""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..config.spec import Spec
from ..core.errors import TarryError, WorkerDied
from ..core.storage import other_storage_errors
from ..executors.watchdog import TIMEOUT, Watchdog, end_within, signals_blocked
from ..record.result import Result
from ..vector.process import tune_malloc
from .run import Progress
from .signals import handled

__all__ = ["LIVES", "PATIENCE", "Jobs", "RunOne", "ShowProgress", "end_processes", "run_in_processes"]

log = logging.getLogger("tarry")

PATIENCE = 60.0  # seconds for a process to write its checkpoint and end
LIVES = 3  # processes of one run that did not respond, at which the comparison ends

#: a spec and the folder for its run
Jobs = Sequence[tuple[Spec, Path | None]]
#: (spec, folder, progress callback) → result; a function of a module
RunOne = Callable[[Spec, Path | None, Callable[[Progress], None]], Result]
#: called with the index of a job, its spec and its progress
ShowProgress = Callable[[int, Spec, Progress], None]


def _child(conn: Connection, others: list[Connection], one: RunOne, spec: Spec, folder: Path | None) -> None:
    for other in others:  # so that the pipe breaks, and this process ends, when the parent is killed
        other.close()
    torch.set_num_threads(1)
    tune_malloc()
    try:
        with handled(child=True), other_storage_errors():
            result = one(spec, folder, lambda p: conn.send(p))
        weights = None if result.weights is None else result.weights.cpu().numpy()
        conn.send((replace(result, weights=None), weights))
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    except TarryError as e:
        conn.send(e)
    except Exception as e:
        text = f"the run of {spec.label}, seed {spec.seed}, failed: {e}\n{traceback.format_exc()}"
        conn.send(TarryError(text))


def end_processes(processes: Sequence[Any]) -> None:
    """Ask processes to end, which write a checkpoint first; kill those that have not ended after `PATIENCE`."""
    for process in processes:
        process.terminate()
        if process.is_alive() and hasattr(signal, "SIGCONT"):
            os.kill(process.pid, signal.SIGCONT)  # one that is stopped
    end_within(processes, PATIENCE)


def run_in_processes(
    jobs: Jobs, *, one: RunOne, workers: int, show: ShowProgress, timeout: float = TIMEOUT
) -> list[Result]:
    """Run every job in a process of its own, `workers` at a time, in order; `show` receives their progress.

    A process that does not respond for `timeout` seconds is replaced: its run resumes from the newest checkpoint.
    """
    waiting, results = list(range(len(jobs))), dict[int, Result]()
    processes = _RunProcesses(jobs, one, timeout)
    try:
        while waiting or processes.running:
            while waiting and len(processes.running) < workers:
                processes.start(waiting.pop(0))
            for conn in wait(list(processes.running)):
                assert isinstance(conn, Connection)
                index = processes.running[conn][0]
                message = processes.receive(conn)
                if isinstance(message, Progress):
                    show(index, jobs[index][0], message)
                elif message is None:
                    waiting.insert(0, index)
                else:
                    result, weights = message
                    results[index] = replace(result, weights=None if weights is None else torch.from_numpy(weights))
    finally:
        processes.end()
    return [results[i] for i in range(len(jobs))]


class _RunProcesses:
    """The processes of runs: `running` has each one's job and process, by the pipe from it."""

    def __init__(self, jobs: Jobs, one: RunOne, timeout: float):
        self._jobs, self._one, self._watchdog = jobs, one, Watchdog(timeout)
        self._context = mp.get_context("fork")
        self._silent: Counter[int] = Counter()  # processes that did not respond, by job
        self.running: dict[Connection, tuple[int, Any]] = {}

    def start(self, index: int) -> None:
        mine, theirs = self._context.Pipe(duplex=False)
        given = (theirs, [*self.running, mine], self._one, *self._jobs[index])
        with signals_blocked():  # so that no process is lost sight of
            self.running[mine] = (index, self._watchdog.start(self._context, _child, given, daemon=False))
        theirs.close()

    def receive(self, conn: Connection) -> Any:
        """Return progress, a result with its weights, or None for a run that is to be started again."""
        index, process = self.running[conn]
        try:
            message = conn.recv()
        except (EOFError, OSError):  # OSError: in the middle of a message
            return self._lost(index, process, self._end(conn))
        if isinstance(message, TarryError):
            raise message
        if not isinstance(message, Progress):
            self._end(conn)
        return message

    def _end(self, conn: Connection) -> str:
        """Wait for a process to end; return why the watchdog killed it, if it did."""
        process = self.running.pop(conn)[1]
        conn.close()
        silent = self._watchdog.release(process)
        process.join()
        return silent

    def _lost(self, index: int, process: Any, silent: str) -> None:
        spec, folder = self._jobs[index]
        if not silent:
            raise WorkerDied(f"the run of {spec.label} was killed (code {process.exitcode})")
        self._silent[index] += 1
        run = f"the run of {spec.label}, seed {spec.seed}"
        if self._silent[index] == LIVES:
            raise WorkerDied(f"{run}: {LIVES} processes of it in a row {silent}")
        again = "begins again" if folder is None else "resumes"
        log.warning("process %d (%s) %s; another takes its place, and the run %s", process.pid, run, silent, again)

    def end(self) -> None:
        self._watchdog.stop()
        end_processes([process for _, process in self.running.values()])
