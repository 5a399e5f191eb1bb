"""Jobs of several experiments: one queue of the missing runs and studies.

order       by entry of the queue, if there is one; then first seeds of all tables, then second seeds, ...; within a
            seed the longest first, so that no long run is last; studies that measure seconds come last and run alone
cells       with equal settings and seed in several tables of a paper are one run; a result of any of them is copied
studies     are one job each; with several workers one job for each seed, and a last one that joins their pieces
"""

from __future__ import annotations

import importlib.util
import time as clock
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from ..core.errors import BadInput, near
from . import catalog
from .experiment import Cell, Experiment
from .measures import StoredRun
from .options import ReproduceOptions
from .store import Store, known_runs
from .studies import STUDIES

__all__ = ["CellRun", "Queue", "ReproduceJob", "StudyRun", "Table", "Tell", "plan_jobs"]

_TIMED = (
    "calibration",
    "calibration_share",
    "distillation_cost",
    "latency",
)  # studies that measure seconds, so that nothing may run beside them
Tell = Callable[[str], None]


@dataclass(frozen=True)
class CellRun:
    """A run, and the cells of all tables that show it."""

    cells: tuple[tuple[str, Cell], ...]  # (table, cell); they differ only in their names
    seed: int
    points: int
    folder: Path | None
    rank: int  # index of the seed among the seeds to run
    weight: float  # hours, or an estimate
    place: int = 0  # of its entry in a queue
    alone: ClassVar[bool] = False

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self.cells))

    @property
    def kind(self) -> str:
        """Return the group of jobs that take about the same time."""
        table, cell = self.cells[0]
        return f"{table}, {cell.column}"

    @property
    def label(self) -> str:
        cell = self.cells[0][1]
        return f"{_table_names(self.tables)}: {cell.row}, {cell.column}, seed {self.seed}"


@dataclass(frozen=True)
class StudyRun:
    """A study for some seeds; if it is not `whole`, it makes only the pieces of these seeds."""

    table: str
    study: str
    options: Mapping[str, Any]
    size: str
    seeds: tuple[int, ...]
    folder: Path
    rank: int
    weight: float
    alone: bool
    whole: bool
    place: int = 0  # of its entry in a queue

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,)

    @property
    def kind(self) -> str:
        return self.table

    @property
    def label(self) -> str:
        return f"{self.table}: {self.study}, seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"


ReproduceJob = CellRun | StudyRun


def _table_names(tables: Sequence[str]) -> str:
    return tables[0] + (f" (and {', '.join(tables[1:])})" if tables[1:] else "")


class Queue:
    """Jobs in the order in which they begin; none is taken after the limit `minutes`, and `stop` ends the others."""

    def __init__(self, jobs: Iterable[ReproduceJob], minutes: float | None = None, stop: float | None = None):
        self.waiting = deque(sorted(jobs, key=lambda j: (j.alone, j.place, j.rank, -j.weight)))
        self.taken, now = 0, clock.monotonic()
        self._until = now + 60 * min(inf if minutes is None else minutes, inf if stop is None else stop)
        self._stop = inf if stop is None else now + 60 * stop

    def take(self, busy: Collection[ReproduceJob] = ()) -> ReproduceJob | None:
        """Return the next job, or None if it may not begin beside the busy ones or the time is over."""
        if not self.waiting or clock.monotonic() >= self._until:
            return None
        if busy and (self.waiting[0].alone or any(job.alone for job in busy)):
            return None
        self.taken += 1
        return self.waiting.popleft()

    def seconds_left(self) -> float | None:
        """Return the seconds until the jobs under way are to be interrupted; None: never."""
        return None if self._stop == inf else max(0.0, self._stop - clock.monotonic())

    def first(self, job: ReproduceJob) -> None:
        self.waiting.appendleft(job)


@dataclass
class Table:
    """An experiment that is run, and the number of jobs left."""

    experiment: Experiment
    store: Store
    left: int = 0
    pieces: dict[int, bool] = field(default_factory=dict)  # seed of a study → whether its job succeeded
    joined: StudyRun | None = None  # the job that joins the pieces


def plan_jobs(
    wanted: Sequence[tuple[Experiment, ReproduceOptions]], tell: Tell, *, in_order: bool = False, keep: bool = False
) -> tuple[dict[str, Table], list[ReproduceJob]]:
    """Return the tables that have runs of their own and their missing jobs; raise BadInput with all problems.

    With `in_order` the jobs of an earlier pair come before those of a later one. With `keep` no file is changed:
    results of other settings are not marked, and results of other tables are not copied.
    """
    own: list[tuple[Experiment, ReproduceOptions]] = []
    for experiment, options in wanted:
        if experiment.uses is not None:
            tell(f"{experiment.name} shows the runs of {experiment.uses}")
        if experiment.uses is None or (options, experiment.runs_of) not in [(o, e.name) for e, o in own]:
            own.append((catalog.find(experiment.runs_of) if experiment.uses else experiment, options))
    own = [pair for i, pair in enumerate(own) if (pair[0].name, pair[1]) not in [(e.name, o) for e, o in own[:i]]]
    if problems := [problem for e, options in own for problem in _problems(e, options)]:
        raise BadInput(list(dict.fromkeys(problems)))
    tables: dict[str, Table] = {}
    usual = median([h for e, _ in own for h in _hours(e).values()] or [1.0])
    missing, jobs = _Missing(usual, tell, keep=keep), list[ReproduceJob]()
    for number, (experiment, options) in enumerate(own):
        place = number if in_order else 0
        store = catalog.results(experiment.name, quick=options.size == "quick", folder=options.results)
        table = tables.setdefault(experiment.name, Table(experiment, store))
        if not keep:
            for message in table.store.mark_earlier(experiment):
                tell(message)
        if experiment.study is None:
            missing.look_at(table, options, place)
        elif not any(isinstance(job, StudyRun) and job.table == experiment.name for job in jobs):
            jobs += _study_runs(table, options, usual, tell, place)
    jobs += missing.runs.values()
    for job in jobs:
        for name in job.tables:
            tables[name].left += 1
    return tables, jobs


def _wanted_runs(experiment: Experiment, options: ReproduceOptions) -> list[tuple[str, str]]:
    return [
        (row, column)
        for row, column in experiment.grid()
        if column in (options.columns or (column,)) and row in (options.rows or (row,))
    ]


def _problems(experiment: Experiment, options: ReproduceOptions) -> list[str]:
    name = experiment.study
    if name is None:
        return experiment.problems(options.size, _wanted_runs(experiment, options))
    return [] if name in STUDIES else [f"{experiment.path}: study: there is no {name!r}.{near(name, STUDIES)}"]


def _hours(experiment: Experiment) -> dict[str, float]:
    """Return the hours of one run in each column; of a study, of one seed."""
    if experiment.study is not None:
        whole = sum(experiment.gpu_hours.values())
        return {experiment.study: whole / experiment.seeds} if experiment.gpu_hours else {}
    runs = max(1, len(experiment.rows)) * experiment.seeds
    return {column: hours / runs for column, hours in experiment.gpu_hours.items()}


class _Missing:
    """The missing runs by paper, settings and seed."""

    def __init__(self, usual: float, tell: Tell, *, keep: bool = False):
        self.runs: dict[tuple[str, str, int], CellRun] = {}
        self._usual, self._tell, self._keep = usual, tell, keep
        self._known: dict[tuple[Path, ...], dict[tuple[str, int], StoredRun]] = {}
        self._resumes = importlib.util.find_spec("safetensors") is not None

    def look_at(self, table: Table, options: ReproduceOptions, place: int) -> None:
        """Add the missing runs of a table; copy results that other tables of the paper have."""
        experiment, store, seeds = table.experiment, table.store, options.seeds_of(table.experiment)
        cells = [experiment.cell(row, column, options.size) for row, column in _wanted_runs(experiment, options)]
        there = {(c.key, seed) for c in cells for seed in store.entries(c)}
        known, taken, lacking = self._known_beside(store), 0, 0
        for rank, seed in enumerate(seeds):
            for cell in [c for c in cells if (c.key, seed) not in there]:
                if (entry := known.get((cell.fingerprint, seed))) is not None:
                    if not self._keep:
                        store.add(cell, seed, entry)
                    taken += 1
                else:
                    self._add(experiment, cell, seed, options, (place, rank))
                    lacking += 1
        if there or taken:
            n, more = len(cells) * len(seeds), f", {taken} of them from other tables" if taken else ""
            self._tell(f"{experiment.name}: {n - lacking} of {n} runs are there{more}")

    def _known_beside(self, store: Store) -> dict[tuple[str, int], StoredRun]:
        folders = (store.path.parent, *(() if store.base is None else (store.base.parent,)))
        if folders not in self._known:
            self._known[folders] = known_runs(*folders)
        return self._known[folders]

    def _add(
        self, experiment: Experiment, cell: Cell, seed: int, options: ReproduceOptions, order: tuple[int, int]
    ) -> None:
        key = (experiment.name.partition("/")[0], cell.fingerprint, seed)
        weight = _hours(experiment).get(cell.column, self._usual)
        mine = (experiment.name, cell)
        if (run := self.runs.get(key)) is not None:
            points, weight = max(run.points, experiment.points), max(run.weight, weight)
            place, rank = min((run.place, run.rank), order)
            cells = run.cells if mine in run.cells else (*run.cells, mine)
            self.runs[key] = replace(run, cells=cells, points=points, rank=rank, weight=weight, place=place)
            return
        name = f"{cell.row}-{cell.column}-seed-{seed}-{cell.fingerprint[:8]}-{options.device}"
        folder = options.out / experiment.name / name if self._resumes else None
        if folder is None and not self.runs:
            self._tell("safetensors is not installed: a run that is interrupted begins again")
        place, rank = order
        self.runs[key] = CellRun((mine,), seed, experiment.points, folder, rank, weight, place)


def _study_runs(table: Table, options: ReproduceOptions, usual: float, tell: Tell, place: int) -> list[StudyRun]:
    """Return the jobs of a study; a reduced size that changes nothing is the full size."""
    experiment, seeds = table.experiment, options.seeds_of(table.experiment)
    assert experiment.study is not None
    same = experiment.study_options(options.size) == experiment.study_options("full")
    size = "full" if options.size == "reduced" and same else options.size
    found = table.store.study(experiment, size)
    if found is not None and set(seeds) <= set(found.get("seeds", ())):
        tell(f"{experiment.name}: its results are there")
        return []
    whole = StudyRun(
        experiment.name,
        experiment.study,
        experiment.study_options(size),
        size,
        seeds,
        options.out / experiment.name / f"study-{size}-{options.device}",
        rank=0,
        weight=_hours(experiment).get(experiment.study, usual) * len(seeds),
        alone=experiment.study in _TIMED,
        whole=True,
        place=place,
    )
    if options.workers == 1 or len(seeds) == 1 or whole.alone:
        return [whole]
    table.joined = replace(whole, weight=0.0)
    share = whole.weight / len(seeds)
    return [replace(whole, seeds=(s,), rank=i, weight=share, whole=False) for i, s in enumerate(seeds)]
