"""Running an experiment: what is there already is not run again, what was begun goes on, the rest several at a time.

A run works in OUT/<paper>/<table>/<row>-<column>-seed-N-<settings>-<device> and goes on from its newest checkpoint;
when it is in the results the folder is removed. A run that fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import multiprocessing as mp
import os
import shlex
import shutil
import signal
import subprocess
import time as clock
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..core.errors import BadInput, Damaged, TarryError
from ..core.process import keep_memory
from ..experiment import Progress, resume, run_spec
from ..version import __version__
from . import shelf
from .measures import Entry, kept, measure_of
from .plan import Cell, Experiment
from .store import Store, known_runs

__all__ = ["Asked", "Report", "default_device", "run_experiment"]

_CHECKPOINT = 60.0  # seconds between checkpoints
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    size: str = "full"
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    workers: int = 1
    device: str = "cpu"
    executor: str | None = None
    precision: str | None = None  # of products, on a GPU
    compile: bool = False
    out: Path = Path("runs")
    results: Path | None = None  # where results go in place of the experiments' own folder
    keep: bool = False  # the runs' folders
    command: str = ""


@dataclass(frozen=True)
class Report:
    """How far everything is: `share` of all work, what is going on, seconds left if that can be said."""

    share: float
    done: int
    total: int
    left: float | None
    text: str = ""  # a run that ended; empty while it goes on
    now: str = ""


Show = Callable[[Report], None]


@dataclass(frozen=True)
class _Job:
    cell: Cell
    seed: int
    folder: Path | None
    weight: float = 1.0

    @property
    def label(self) -> str:
        return f"{self.cell.row}, {self.cell.column}, seed {self.seed}"


@dataclass
class _Meter:
    """Work done and to do, in units that make runs of different columns comparable."""

    total: float
    runs: int
    began: float = field(default_factory=clock.monotonic)
    finished: float = 0.0
    done: int = 0
    going: dict[str, tuple[float, float]] = field(default_factory=dict)  # label → weight, fraction

    def report(self, text: str = "") -> Report:
        share = (self.finished + sum(w * f for w, f in self.going.values())) / self.total if self.total else 1.0
        elapsed = clock.monotonic() - self.began
        left = elapsed * (1 - share) / share if share > 0.01 and elapsed > 5 else None
        now = "; ".join(f"{label} {fraction:.0%}" for label, (_, fraction) in self.going.items())
        return Report(min(share, 1.0), self.done, self.runs, left, text, now)


def default_device() -> str:
    """cuda if it is there; asked for without starting it, so that processes can be made afterwards."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return "cuda" if torch.cuda.is_available() else "cpu"


def run_experiment(experiment: Experiment, asked: Asked, show: Show, tell: Tell) -> list[str]:
    """Run what is missing and store it; what failed comes back, a text each."""
    if experiment.uses is not None:
        tell(f"{experiment.name} shows the runs of {experiment.uses}")
        experiment = shelf.find(experiment.uses)
    store = shelf.results(experiment.name, quick=asked.size == "quick", folder=asked.results)
    if experiment.study is not None:
        return _study(experiment, asked, store, tell)
    for said in store.drop_stale(experiment):
        tell(said)
    jobs = _jobs(experiment, asked, store, tell)
    weight = sum(j.weight for j in jobs)
    meter, failed = _Meter(weight, len(jobs)), list[str]()
    if not jobs:
        return failed
    many = "" if asked.workers == 1 else f", {min(asked.workers, len(jobs))} at a time"
    tell(f"{experiment.name}, {asked.size} size: {len(jobs)} runs to do on {asked.device}{many}")
    work = _alone if asked.workers == 1 or len(jobs) == 1 else _several
    measure = measure_of(experiment, experiment.measures[0])
    with contextlib.closing(work(jobs, experiment.points, asked, meter, show)) as outcomes:
        for job, outcome in outcomes:
            meter.going.pop(job.label, None)
            meter.finished += job.weight
            meter.done += 1
            if isinstance(outcome, str):
                failed.append(f"{experiment.name}: {job.label}: {outcome}")
                show(meter.report(f"{job.label}: failed: {outcome.splitlines()[0]}"))
                continue
            store.add(job.cell, job.seed, outcome)
            if job.folder is not None and not asked.keep:
                shutil.rmtree(job.folder, ignore_errors=True)
            show(meter.report(f"{job.label}: {_said(outcome, experiment.measures[0], measure.heading)}"))
    return failed


def _said(entry: Entry, name: str, heading: str) -> str:
    value = entry.numbers.get(name, entry.numbers.get("accuracy"))
    text = "no score" if value is None else f"{heading if name in entry.numbers else 'accuracy (%)'} {value:.4g}"
    return f"{text}, {entry.numbers['updates']:,} updates, {entry.numbers['wall']:.0f} s"


def _study(experiment: Experiment, asked: Asked, store: Store, tell: Tell) -> list[str]:
    """Run a study in this process; where the reduced size changes nothing, it is the paper's own."""
    same = experiment.study_options(asked.size) == experiment.study_options("full")
    size = "full" if asked.size == "reduced" and same else asked.size
    name = f"{__package__}.studies.{experiment.study}"
    try:
        module = import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise BadInput(f"{experiment.name}: {e.name} is needed for it: pip install {e.name}") from e
        raise BadInput(f"{experiment.path}: study {experiment.study!r}: there is no such study") from e
    folder = asked.out / experiment.name / f"study-{size}-{asked.device}"
    folder.mkdir(parents=True, exist_ok=True)
    seeds = _seeds(experiment, asked)
    result = module.run(
        experiment.study_options(size),
        quick=size == "quick",
        seeds=seeds,
        device=asked.device,
        folder=folder,
        tell=tell,
    )
    store.add_study(experiment, size, result, _made(asked))
    if not asked.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return []


def _seeds(experiment: Experiment, asked: Asked) -> Sequence[int]:
    """As asked; one for a quick look, else as many as the experiment has."""
    return asked.seeds if asked.seeds is not None else range(1 if asked.size == "quick" else experiment.seeds)


def _jobs(experiment: Experiment, asked: Asked, store: Store, tell: Tell) -> list[_Job]:
    """The runs that are missing, seed by seed, so that a table cut short has all rows of the first seeds."""
    wanted = [(r, c) for r, c in experiment.grid() if c in (asked.columns or (c,)) and r in (asked.rows or (r,))]
    if problems := experiment.problems(asked.size, wanted):
        raise BadInput(problems)
    cells = [experiment.cell(row, column, asked.size) for row, column in wanted]
    known = known_runs(store.path.parent, *([] if store.base is None else [store.base.parent]))
    there = {(c.key, seed) for c in cells for seed in store.entries(c)}
    jobs, taken, folders = [], 0, asked.out / experiment.name
    rows = max(1, len(experiment.rows))
    for seed in _seeds(experiment, asked):
        for cell in cells:
            if (cell.key, seed) in there:
                continue
            if (entry := known.get((cell.fingerprint, seed))) is not None:
                store.add(cell, seed, entry)
                taken += 1
                continue
            name = f"{cell.row}-{cell.column}-seed-{seed}-{cell.fingerprint[:8]}-{asked.device}"
            folder = folders / name if importlib.util.find_spec("safetensors") else None
            jobs.append(_Job(cell, seed, folder, (experiment.gpu_hours.get(cell.column) or float(rows)) / rows))
    if there or taken:
        more = f", {taken} of them from other tables" if taken else ""
        n = len(cells) * len(_seeds(experiment, asked))
        tell(f"{experiment.name}: {n - len(jobs)} of {n} runs are there{more}")
    if jobs and jobs[0].folder is None:
        tell("safetensors is not installed: a run that is interrupted begins again")
    return jobs


# One run


def _machine(cell: Cell, asked: Asked) -> dict[str, Any]:
    """Where and how: as asked, else as the cell says, else what is usual."""
    usual: dict[str, Any] = {"checkpoint_every": _CHECKPOINT}
    usual |= {"executor": "auto"} if asked.device == "cuda" else {}
    asked_for: dict[str, Any] = {"device": asked.device, "executor": asked.executor, "precision": asked.precision}
    if asked.compile:
        asked_for |= {"compile": True, "executor": asked.executor or "batched"}
    return {k: v for k, v in usual.items() if k not in cell.settings} | {k: v for k, v in asked_for.items() if v}


def _run(job: _Job, points: int, asked: Asked, progress: Callable[[Progress], None]) -> Entry | str:
    """What is kept of a run, or the text of what went wrong."""
    try:
        return kept(_result(job, asked, progress), points, _made(asked))
    except TarryError as e:
        return str(e)
    except Exception as e:
        return f"{type(e).__name__}: {e}\n{traceback.format_exc()}"


def _result(job: _Job, asked: Asked, progress: Callable[[Progress], None]) -> Any:
    spec = job.cell.spec(job.seed, **_machine(job.cell, asked))
    if job.folder is not None and (job.folder / "spec.toml").is_file():
        try:
            return resume(job.folder, progress=progress)
        except Damaged:
            shutil.rmtree(job.folder)
    return run_spec(spec, out=job.folder, progress=progress)


def _made(asked: Asked) -> dict[str, str]:
    """By what, where and when."""
    device = torch.cuda.get_device_name() if asked.device == "cuda" else _processor()
    made = {"tarry": __version__, "commit": _commit(), "torch": torch.__version__, "device": device}
    return {**made, "date": datetime.now(UTC).date().isoformat(), "command": _elsewhere(asked.command)}


def _elsewhere(command: str) -> str:
    """Without the folders of this machine, which say nothing elsewhere."""
    words, left = list[str](), iter(shlex.split(command))
    for word in left:
        if word in ("--out", "--results"):
            next(left, None)
        elif not word.startswith(("--out=", "--results=")):
            words.append(word)
    return shlex.join(words)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "cpu"


def _commit() -> str:
    """Of the checkout that this is, with a + where sources differ from it; empty where it is none."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return ""
    git = ["git", "-C", str(here)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
        changed = subprocess.run([*git, "status", "--porcelain", "--", "src"], capture_output=True, timeout=10)
        return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
    return ""


# Several


def _alone(
    jobs: Sequence[_Job], points: int, asked: Asked, meter: _Meter, show: Show
) -> Generator[tuple[_Job, Entry | str]]:
    """One after the other in this process."""
    for job in jobs:

        def progress(step: Progress, job: _Job = job) -> None:
            meter.going[job.label] = (job.weight, step.fraction)
            show(meter.report())

        yield job, _run(job, points, asked, progress)
        _forget()


def _forget() -> None:
    """Give memory of the run before back: the next may be of another model."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _serve(conn: Connection, points: int, asked: Asked) -> None:
    """A worker's life: run what comes until the pipe closes, also when the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    keep_memory()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while (job := conn.recv()) is not None:
            conn.send(_run(job, points, asked, lambda step: conn.send(step.fraction)))
            _forget()


def _several(
    jobs: Sequence[_Job], points: int, asked: Asked, meter: _Meter, show: Show
) -> Generator[tuple[_Job, Entry | str]]:
    """In processes of their own, which are started afresh: a GPU's memory and this process's are not shared."""
    context: Any = mp.get_context("spawn")
    waiting, busy, processes = list(jobs), dict[Connection, _Job](), dict[Connection, Any]()

    def start() -> Connection:
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, points, asked), daemon=True)
        process.start()
        theirs.close()
        processes[mine] = process
        return mine  # type: ignore[no-any-return]

    try:
        for _ in range(min(asked.workers, len(jobs))):
            conn = start()
            busy[conn] = waiting.pop(0)
            conn.send(busy[conn])
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                conn, job = ready, busy[ready]
                try:
                    message: Any = conn.recv()
                except (EOFError, ConnectionResetError):
                    message = _died(processes.pop(conn))
                if isinstance(message, float | int):
                    meter.going[job.label] = (job.weight, float(message))
                    show(meter.report())
                    continue
                del busy[conn]
                if waiting:
                    free = conn if conn in processes else start()
                    busy[free] = waiting.pop(0)
                    free.send(busy[free])
                yield job, message
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()


def _died(process: Any) -> str:
    process.join()
    return f"its process ended with code {process.exitcode} and no answer: killed, or out of memory"
