"""Running experiments: finished runs are skipped, interrupted runs resume, the rest run several at a time.

A run works in OUT/<paper>/<table>/<row>-<column>-seed-N-<settings>-<device> and resumes from its newest checkpoint;
when its result is stored, the folder is removed. A run that fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time as clock
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from . import data_needs, pool
from .experiment import Experiment
from .jobs import CellRun, Queue, ReproduceJob, StudyRun, Table, Tell, plan_jobs
from .measures import StoredRun, measure_of
from .options import ReproduceOptions
from .worker import JobFailure, JobResult, StudyResult

__all__ = ["Report", "ShowReport", "default_device", "run_all"]

_NAMED = 3  # runs or tables up to which each is named
_SOON = 5.0  # seconds of work before the first estimate of the time left


@dataclass(frozen=True)
class Report:
    """Progress of all jobs: the share of the work that is done, the jobs under way, the seconds left if known."""

    share: float
    done: int
    total: int
    left: float | None
    text: str = ""  # set when a run ends
    now: str = ""


ShowReport = Callable[[Report], None]


@dataclass
class _Going:
    """A job under way: its progress, and its progress at the first message."""

    job: ReproduceJob
    first: float
    since: float
    fraction: float

    @property
    def done(self) -> float:
        return self.job.weight * (self.fraction - self.first)


class _Meter:
    """Work done and left. Weights of jobs are estimates; seconds for a weight are measured by table and column."""

    def __init__(self, jobs: Sequence[ReproduceJob], at_a_time: int):
        self.runs, self.done, self._at_a_time = len(jobs), 0, at_a_time
        self._ahead, self._took = dict[str, float](), dict[str, tuple[float, float]]()  # weight; seconds and weight
        self._going: dict[str, _Going] = {}
        for job in jobs:
            self._ahead[job.kind] = self._ahead.get(job.kind, 0.0) + job.weight

    def on_progress(self, job: ReproduceJob, fraction: float) -> None:
        going = self._going.setdefault(job.label, _Going(job, fraction, clock.monotonic(), fraction))
        going.fraction = fraction

    def end(self, job: ReproduceJob) -> None:
        self.done += 1
        self._ahead[job.kind] -= job.weight
        if (going := self._going.pop(job.label, None)) is not None:
            going.fraction = 1.0
            self._took[job.kind] = self._with(job.kind, [going])

    def _with(self, kind: str, going: Iterable[_Going]) -> tuple[float, float]:
        """Return the seconds and the weight of the finished work of a kind."""
        now, (seconds, weight) = clock.monotonic(), self._took.get(kind, (0.0, 0.0))
        mine = [g for g in going if g.job.kind == kind]
        return seconds + sum(now - g.since for g in mine), weight + sum(g.done for g in mine)

    def report(self, text: str = "") -> Report:
        going = list(self._going.values())
        took = {kind: self._with(kind, going) for kind in self._ahead}
        seconds, weight = (sum(part) for part in zip(*took.values(), strict=True)) if took else (0.0, 0.0)
        left: float | None = None
        share = float(self.done == self.runs)
        if weight > 0:
            ahead = 0.0
            for kind, more in self._ahead.items():
                rate = took[kind][0] / took[kind][1] if took[kind][1] > 0 else seconds / weight
                ahead += rate * (more - sum(g.job.weight * g.fraction for g in going if g.job.kind == kind))
            share = seconds / (seconds + ahead) if seconds + ahead > 0 else share
            left = ahead / max(1, min(self._at_a_time, self.runs - self.done)) if seconds > _SOON else None
        named = [f"{g.job.label} {g.fraction:.0%}" for g in going]
        others = [f"{len(named) - _NAMED} more"] if len(named) > _NAMED else []
        return Report(min(share, 1.0), self.done, self.runs, left, text, "; ".join(named[:_NAMED] + others))


def default_device() -> str:
    """Return cuda if present, else cpu; CUDA is not initialized, so that processes can be started afterwards."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return "cuda" if torch.cuda.is_available() else "cpu"


def run_all(
    experiments: Sequence[Experiment],
    options: ReproduceOptions,
    show: ShowReport,
    tell: Tell,
    ended: Callable[[Experiment], None] = lambda _: None,
    *,
    queue: Sequence[tuple[Experiment, ReproduceOptions]] | None = None,
) -> list[str]:
    """Run all missing jobs and store their results; return a text for each failure.

    `queue` gives each experiment options of its own, in the order of the jobs. `ended` is called with each experiment
    when its last job has ended, at the latest at the end.
    """
    tables, wanted = plan_jobs(
        [(e, options) for e in experiments] if queue is None else queue, tell, in_order=queue is not None
    )
    jobs, skipped = _split_by_data(tables, wanted, tell)
    showing: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        showing.setdefault(experiment.runs_of, []).append(experiment)

    def close(name: str) -> None:
        for experiment in showing.pop(name, []):
            ended(experiment)

    for name in [name for name, table in tables.items() if table.left == 0]:
        close(name)
    work = _Work(tables, Queue(jobs, options.within, options.stop), options, show, tell, skipped)
    if jobs:
        many = "" if options.workers == 1 else f", {min(options.workers, len(jobs))} at a time"
        of = _names(name for name, table in tables.items() if table.left)
        size = options.size if queue is None else "its own"
        tell(f"{of}, {size} size: {_runs(len(jobs))} to do on {options.device}{many}")
        work.do(close)
    for name in list(showing):
        close(name)
    if work.interrupted:
        tell(f"{_runs(work.interrupted)} interrupted: --stop {options.stop:g} is over; the same command resumes")
    if not_begun := len(work.queue.waiting):
        limit = f"--within {options.within:g}" if options.within is not None else f"--stop {options.stop:g}"
        tell(f"{_runs(not_begun)} not begun: {limit} is over; the same command resumes")
    return work.failed


def _split_by_data(
    tables: dict[str, Table], wanted: Sequence[ReproduceJob], tell: Tell
) -> tuple[list[ReproduceJob], dict[str, list[str]]]:
    """Return the jobs whose data sets exist, and for each missing data set its error and its jobs."""
    lacking = data_needs.missing_data(wanted)
    for name, out in lacking.items():
        tell(f"{_names(n for job in out for n in job.tables)}: {name} is not here: {_runs(len(out))} left out")
    skipped = {job.label for out in lacking.values() for job in out}
    for table in (tables[name] for job in wanted if job.label in skipped for name in job.tables):
        table.left -= 1
    errors = {data_needs.error(name): [job.label for job in out] for name, out in lacking.items()}
    return [job for job in wanted if job.label not in skipped], errors


def _names(tables: Iterable[str]) -> str:
    names = list(dict.fromkeys(tables))
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} tables"


def _some(labels: Sequence[str]) -> str:
    few = labels if len(labels) <= _NAMED + 1 else [*labels[:_NAMED], f"{len(labels) - _NAMED} more"]
    return "; ".join(few)


def _runs(n: int) -> str:
    return f"{n} run{'' if n == 1 else 's'}"


class _Work:
    """Execution of the queue: results are stored when they arrive."""

    def __init__(
        self,
        tables: dict[str, Table],
        queue: Queue,
        options: ReproduceOptions,
        show: ShowReport,
        tell: Tell,
        failed: dict[str, list[str]],  # error → labels of the jobs that have it
    ):
        self.queue, self._failed = queue, failed
        self._tables, self._options, self._show, self._tell = tables, options, show, tell
        self._meter = _Meter(queue.waiting, options.workers)
        self.interrupted = 0  # runs under way when --stop was over

    @property
    def failed(self) -> list[str]:
        """Return each error once, after the jobs that had it."""
        return [f"{_some(labels)}: {text}" for text, labels in self._failed.items()]

    def do(self, close: Callable[[str], None]) -> None:
        """Run until no job is left that may begin; call `close` with the name of each finished table."""
        one = (self._options.workers == 1 or len(self.queue.waiting) == 1) and self._options.stop is None
        ended = 0
        work = pool.run_serial if one else pool.run_parallel
        with contextlib.closing(work(self.queue, self._options, self._on_progress)) as outcomes:
            for job, outcome in outcomes:
                self._end(job, outcome)
                for name in job.tables:
                    self._tables[name].left -= 1
                    if self._tables[name].left == 0:
                        close(name)
                ended += 1
        self.interrupted = self.queue.taken - ended

    def _on_progress(self, job: ReproduceJob, progress: float | str) -> None:
        if isinstance(progress, str):
            self._tell(f"{job.tables[0]}: {progress}")
        else:
            self._meter.on_progress(job, float(progress))
            self._show(self._meter.report())

    def _end(self, job: ReproduceJob, outcome: JobResult) -> None:
        self._meter.end(job)
        if isinstance(outcome, JobFailure):
            self._failed.setdefault(outcome.text, []).append(job.label)
            outcome_text = f"failed: {outcome.text.splitlines()[0]}"
        else:
            outcome_text = self._store(job, outcome)
        self._show(self._meter.report(f"{job.label}: {outcome_text}"))
        if isinstance(job, StudyRun) and not job.whole:
            self._join(job, fine=not isinstance(outcome, JobFailure))

    def _store(self, job: ReproduceJob, outcome: StoredRun | StudyResult) -> str:
        """Store a result and remove its folder if it is not needed; return a text on the result."""
        needed, message = self._options.keep, "done"
        if isinstance(job, CellRun):
            assert isinstance(outcome, StoredRun)
            for name, cell in job.cells:
                self._tables[name].store.add(cell, job.seed, outcome)
            message = _result_text(outcome, self._tables[job.tables[0]].experiment)
        elif job.whole:
            assert isinstance(outcome, StudyResult)
            table = self._tables[job.table]
            table.store.add_study(table.experiment, job.size, {**outcome.result, "seeds": [*job.seeds]}, outcome.made)
            needed |= not all(table.pieces.values())  # the next command runs failed seeds again
        else:
            needed = True
        if job.folder is not None and not needed:
            shutil.rmtree(job.folder, ignore_errors=True)
        return message

    def _join(self, job: StudyRun, *, fine: bool) -> None:
        """After the last seed of a study, queue the job that joins the pieces of all seeds."""
        table = self._tables[job.table]
        assert table.joined is not None
        table.pieces[job.seeds[0]] = fine
        good = tuple(seed for seed in table.joined.seeds if table.pieces.get(seed))
        if len(table.pieces) == len(table.joined.seeds) and good:
            self.queue.first(replace(table.joined, seeds=good))
            table.left += 1
            self._meter.runs += 1


def _result_text(entry: StoredRun, experiment: Experiment) -> str:
    name = experiment.measures[0]
    value = entry.numbers.get(name, entry.numbers.get("accuracy"))
    heading = measure_of(experiment, name).heading if name in entry.numbers else "accuracy (%)"
    text = "no score" if value is None else f"{heading} {value:.4g}"
    return f"{text}, {entry.numbers['updates']:,} updates, {entry.numbers['wall']:.0f} s"
