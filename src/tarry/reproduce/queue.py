"""experiments/queue.toml: the runs that are still to be made, in order of value, with their expected cost.

    [[entry]]
    run = "fedsol/table2-lda"            a table, or a study
    only, rows, seeds, size              as the flags of `tarry reproduce`; left out: all columns and rows, the
                                         experiment's seeds, the full size
    minutes = 0.8                        of one run (of a study, of one seed) on the device, several at a time
    measured = "…"                       where the minutes are from; left out: computed from client steps

All entries are one queue: the runs of an entry begin before those of the next one, first seeds first. A run that
several entries need is made once. Finished runs are skipped, so that the same command continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import BadInput, near
from ..core.storage import read_toml
from . import catalog, data_needs
from .experiment import Experiment
from .jobs import ReproduceJob, StudyRun, plan_jobs
from .options import SIZES, ReproduceOptions, seed_numbers

__all__ = ["QueueEntry", "lines", "read_queue", "with_options"]

FILE = "queue.toml"
_KEYS = ("run", "only", "rows", "seeds", "size", "minutes", "measured")


@dataclass(frozen=True)
class QueueEntry:
    """One entry of the queue."""

    experiment: Experiment
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    seeds: tuple[int, ...] | None
    size: str
    minutes: float
    measured: str

    @property
    def command(self) -> str:
        """The command that makes the runs of this entry alone."""
        only = f" --only {','.join(self.columns)}" if self.columns else ""
        rows = f" --rows {','.join(self.rows)}" if self.rows else ""
        seeds = "" if self.seeds is None else f" --seeds {','.join(map(str, self.seeds))}"
        seeds += "," if self.seeds is not None and len(self.seeds) == 1 else ""
        size = "" if self.size == "full" else f" --size {self.size}"
        return f"tarry reproduce {self.experiment.name}{only}{rows}{seeds}{size}"


def read_queue() -> list[QueueEntry]:
    """Return the entries in their order; raise BadInput with all problems."""
    path = catalog.root() / FILE
    if not path.is_file():
        raise BadInput(f"--queue: there is no {path}; write one, or name experiments instead")
    entries, problems = list[QueueEntry](), list[str]()
    for i, table in enumerate(read_toml(path, str(path)).get("entry", [])):
        try:
            entries.append(_entry(table))
        except BadInput as e:
            problems += [f"{path}: entry {i + 1}: {problem}" for problem in e.problems]
    if problems:
        raise BadInput(problems)
    return entries


def _entry(table: dict[str, Any]) -> QueueEntry:
    problems = [f"{key}: there is no such key.{near(key, _KEYS)}" for key in table if key not in _KEYS]
    experiment = catalog.find(str(table.get("run", "")))
    columns, rows = (tuple(table.get(key, ())) for key in ("only", "rows"))
    problems += [
        f"only: there is no column {c!r}.{near(c, experiment.columns)}" for c in set(columns) - {*experiment.columns}
    ]
    problems += [f"rows: there is no row {r!r}.{near(r, experiment.rows)}" for r in set(rows) - {*experiment.rows}]
    size, minutes = table.get("size", "full"), table.get("minutes", 0)
    if size not in SIZES[:2]:
        problems.append(f"size {size!r}: wants full or reduced")
    if not isinstance(minutes, int | float) or isinstance(minutes, bool) or not minutes > 0:
        problems.append(f"minutes {minutes!r}: wants the device minutes of one run")
    if problems:
        raise BadInput(problems)
    seeds = None if "seeds" not in table else seed_numbers(str(table["seeds"]))
    return QueueEntry(experiment, columns, rows, seeds, size, float(minutes), str(table.get("measured", "")))


def with_options(entries: Sequence[QueueEntry], options: ReproduceOptions) -> list[tuple[Experiment, ReproduceOptions]]:
    """Return each entry's experiment with the options of the command and of the entry."""
    return [
        (e.experiment, replace(options, size=e.size, columns=e.columns, rows=e.rows, seeds=e.seeds)) for e in entries
    ]


def lines(entries: Sequence[QueueEntry], *, results: Path | None = None) -> Iterator[str]:
    """Yield a description of each entry: what is left of it and its expected device hours, and the hours so far.

    A run that several entries need is counted in the first one.
    """
    hours, counted = 0.0, set[tuple[object, ...]]()
    pairs = with_options(entries, ReproduceOptions(results=results))
    for number, (entry, pair) in enumerate(zip(entries, pairs, strict=True), 1):
        _, jobs = plan_jobs([pair], lambda _: None, keep=True)
        left = {run: job for job in jobs for run in _runs_of(job) if run not in counted}
        counted |= left.keys()
        hours += (cost := len(left) * entry.minutes / 60)
        where = f"measured: {entry.measured}" if entry.measured else "computed from client steps"
        yield f"{number}. {entry.command}"
        yield f"    {len(left)} to run, about {cost:.2g} device hours ({where}); {hours:.3g} up to here"
        absent = data_needs.missing_data(list({id(job): job for job in left.values()}.values()))
        if absent:
            yield "    data missing: " + ", ".join(f"{name} ({len(jobs)} runs)" for name, jobs in absent.items())
    yield f"{hours:.3g} device hours in all"


def _runs_of(job: ReproduceJob) -> list[tuple[object, ...]]:
    """Return what identifies the runs of a job; a study has one for each seed."""
    if isinstance(job, StudyRun):
        return [(job.table, job.size, seed) for seed in job.seeds]
    return [(job.cells[0][0].partition("/")[0], job.cells[0][1].fingerprint, job.seed)]
