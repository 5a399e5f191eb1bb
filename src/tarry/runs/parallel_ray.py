"""The runs of a comparison on a Ray cluster: a task for each, in a process of its own, with one CPU.

A run that is lost with its worker is started again; with a folder it resumes from its newest checkpoint. All machines
of the cluster must see the folders, the data sets and the files that the runs name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..config.spec import Spec
from ..core.errors import BadInput, TarryError, WorkerDied
from ..executors.ray_cluster import (
    ClusterWatch,
    check_capacity,
    connect,
    load,
    one_line,
    register_user_modules,
)
from ..record.result import Result
from ..vector.process import tune_malloc
from .parallel import PATIENCE, Jobs, RunOne, ShowProgress
from .run import Progress
from .signals import Interrupted, handled

__all__ = ["run_on_ray"]

_RETRIES = 2  # of a run that was lost with its worker
_BOARD_TIMEOUT = 5.0  # seconds to wait for progress
_POLL = 0.2  # seconds between polls for progress and results


class _ProgressActor:
    """A Ray actor that keeps the newest progress of every run."""

    def __init__(self) -> None:
        self._news: dict[int, Progress] = {}

    def put(self, index: int, progress: Progress) -> None:
        self._news[index] = progress

    def take(self) -> dict[int, Progress]:
        news, self._news = self._news, {}
        return news


def _run(runs: Jobs, index: int, one: RunOne, board: Any, environment: Mapping[str, str]) -> Any:
    """Return the run's result with its weights as an array, or its error."""
    spec, folder = runs[index]
    os.environ.update(environment)
    torch.set_num_threads(1)
    tune_malloc()
    if folder is not None and not folder.parent.is_dir():
        return BadInput(_not_shared(folder))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with handled(child=True):
            result = one(spec, folder, lambda progress: board.put.remote(index, progress))
    except Interrupted as e:
        return TarryError(f"the run of {spec.label}, seed {spec.seed}, was interrupted by {e.name}")
    except TarryError as e:
        return e
    except Exception as e:
        return TarryError(f"the run of {spec.label}, seed {spec.seed}, failed: {e}\n{traceback.format_exc()}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # Ray's, by which it ends the process
    return replace(result, weights=None), None if result.weights is None else result.weights.cpu().numpy()


def _not_shared(folder: Path) -> str:
    return f"--out {folder}: not all machines of the Ray cluster share it; name a folder that they all see"


def run_on_ray(
    runs: Jobs,
    *,
    one: RunOne,
    workers: int,
    show: ShowProgress,
    address: str | None = None,
    gpus: float = 0.0,
) -> list[Result]:
    """Run every job with `one`, `workers` at a time and as the cluster has room; `show` receives their progress."""
    ray, leave = load(), connect(address, cpus=workers)
    running: dict[Any, int] = {}
    cluster = ClusterWatch()
    try:
        check_capacity(gpus)
        register_user_modules()
        folders = [None if folder is None else folder.resolve() for _, folder in runs]
        _prepare(folders)
        board = _board(ray)
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_calls=1, max_retries=_RETRIES)(_run)
        everything = ray.put([(spec, folder) for (spec, _), folder in zip(runs, folders, strict=True)])
        environment = {k: v for k, v in os.environ.items() if k.startswith("TARRY_")}
        waiting, results = list(range(len(runs))), dict[int, Result]()
        while waiting or running:
            while waiting and len(running) < workers:
                index = waiting.pop(0)
                running[task.remote(everything, index, one, board, environment)] = index
            ready, _ = ray.wait(list(running), timeout=_POLL)
            for index, progress in _news(ray, board, cluster).items():
                if index in running.values():
                    show(index, runs[index][0], progress)
            for ref in ready:
                cluster.check()
                index = running.pop(ref)
                spec, folder = runs[index]
                result = results[index] = replace(_result(ray, ref, spec, folders[index]), out=folder)
                show(index, spec, Progress(1.0, result.virtual_time, result.updates, result.final_score, result.metric))
        return [results[i] for i in range(len(runs))]
    finally:
        with contextlib.suppress(WorkerDied):
            cluster.check()
            _end_runs(ray, list(running))
        cluster.close()
        leave()


def _end_runs(ray: Any, running: list[Any]) -> None:
    """Ask runs to end, which write a checkpoint first; kill those that have not ended after `PATIENCE`."""
    for force in (False, True):
        for ref in running:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(ref, force=force)
        if running and not force:
            _, running = ray.wait(running, num_returns=len(running), timeout=PATIENCE)


def _news(ray: Any, board: Any, cluster: ClusterWatch) -> dict[int, Progress]:
    """Return the newest progress of every run."""
    cluster.check()
    try:
        news: dict[int, Progress] = ray.get(board.take.remote(), timeout=_BOARD_TIMEOUT)
    except ray.exceptions.GetTimeoutError:
        return {}
    except ray.exceptions.RayError as e:
        cluster.check()
        raise WorkerDied(f"the progress of the runs was lost with its Ray worker: {one_line(e)}") from e
    return news


def _prepare(folders: Sequence[Path | None]) -> None:
    """Make the parent folders of all runs: a machine that does not see them does not share the file system."""
    for folder in folders:
        if folder is not None:
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise BadInput(f"--out {folder}: it cannot be made ({e}); name another folder") from e


def _board(ray: Any) -> Any:
    """Start the actor on this machine, so that no other machine's failure ends it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(_ProgressActor).remote()


def _result(ray: Any, ref: Any, spec: Spec, folder: Path | None) -> Result:
    try:
        answer = ray.get(ref)
    except ray.exceptions.RayTaskError as e:
        raise TarryError(f"the run of {spec.label}, seed {spec.seed}, failed in its Ray worker: {e}") from e
    except ray.exceptions.RayError as e:
        raise WorkerDied(
            f"the run of {spec.label}, seed {spec.seed}, was lost with its Ray worker {_RETRIES + 1} times: "
            f"{one_line(e)}"
        ) from e
    if isinstance(answer, TarryError):
        raise answer
    result, weights = answer
    if folder is not None and not (folder / "result.json").is_file():
        raise BadInput(_not_shared(folder))
    assert isinstance(result, Result)
    return replace(result, weights=None if weights is None else torch.from_numpy(weights.copy()))
