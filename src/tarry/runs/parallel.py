"""The runs of a comparison in parallel processes of this machine."""

from __future__ import annotations

import multiprocessing as mp
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..config.spec import Spec
from ..core.errors import TarryError, WorkerDied
from ..core.storage import other_storage_errors
from ..record.result import Result
from ..vector.process import tune_malloc
from .run import Progress
from .signals import handled, held_back

__all__ = ["PATIENCE", "Jobs", "RunOne", "ShowProgress", "end_processes", "run_in_processes"]

PATIENCE = 60.0  # seconds for a process to write its checkpoint and end

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
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def run_in_processes(jobs: Jobs, *, one: RunOne, workers: int, show: ShowProgress) -> list[Result]:
    """Run every job in a process of its own, `workers` at a time, in order; `show` receives their progress."""
    context = mp.get_context("fork")
    waiting, running = list(enumerate(jobs)), dict[Connection, tuple[int, Any]]()
    results: dict[int, Result] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                index, (spec, folder) = waiting.pop(0)
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, [*running, mine], one, spec, folder))
                with held_back():
                    process.start()
                theirs.close()
                running[mine] = (index, process)
            for conn in wait(list(running)):
                assert isinstance(conn, Connection)
                index, process = running[conn]
                try:
                    message = conn.recv()
                except EOFError:
                    process.join()
                    raise WorkerDied(
                        f"the run of {jobs[index][0].label} was killed (code {process.exitcode})"
                    ) from None
                if isinstance(message, Progress):
                    show(index, jobs[index][0], message)
                    continue
                if isinstance(message, TarryError):
                    raise message
                result, weights = message
                results[index] = replace(result, weights=None if weights is None else torch.from_numpy(weights))
                process.join()
                del running[conn]
    finally:
        end_processes([process for _, process in running.values()])
    return [results[i] for i in range(len(jobs))]
