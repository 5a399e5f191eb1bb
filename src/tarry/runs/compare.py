"""Comparisons: several methods and seeds with the same task, partition, first weights and delays.

Durations are a function of (seed, client, visit), so every method of a seed meets the same ones. Runs are independent
and go `workers` at a time; a comparison in a folder reuses the runs that are there. OUT/command.txt is the command
line that began it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

from ..config.keywords import GridSettings, Named, lists_keywords
from ..config.spec import Spec
from ..core.errors import (
    BadInput,
    StorageError,
    TarryWarning,
    as_keywords,
    errors_as_keywords,
    warn_of,
)
from ..core.method import Method
from ..core.task import Task
from ..record.run_folder import RunFolder
from ..record.storage import make_folder, write_atomic
from ..report.formatting import pluralize
from ..report.significance import significance_json
from ..report.tables import (
    summarize,
    to_json,
)
from .comparison import SIGNIFICANCE, Comparison
from .jobs import check_folder, run_folder_of, run_jobs
from .named_files import files_of
from .parallel import Jobs, ShowProgress
from .progress_bars import comparison_bar
from .result import SpecModel
from .specs import specs_of
from .tracking import ComparisonTracking
from .tuning.tuned_file import TUNED, TunedSettings, tuned_settings
from .tuning.tuned_specs import tuned_specs
from .tuning.tuning import Tuning

__all__ = ["COMMAND", "compare", "compare_specs", "write_command"]

COMMAND = "command.txt"


@lists_keywords(GridSettings)
def compare(
    methods: Sequence[Named | Method] | None = None,
    task: Named | Task | None = None,
    *,
    seeds: Iterable[int] = (0, 1, 2),
    tuned: str | Path | Tuning | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    progress: bool | ShowProgress | None = None,
    **settings: Unpack[GridSettings],
) -> Comparison:
    """Run every method with every seed; settings and `progress` as for `run`.

    A number or a choice may have several values, lr=[0.1, 0.05]: then every combination is run. `tuned` is what `tune`
    returned, or a file that it wrote: every method has its tuned settings, with the settings of the tuning.

    >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0], time=1000)
    >>> [row.label for row in c.summary.rows]
    ['fedavg', 'fedasync']
    >>> c = tarry.compare(["fedasync"], "digits", seeds=[0], lr=[0.1, 0.05], clients=3, updates=6)
    >>> [row.label for row in c.summary.rows]
    ['fedasync+lr=0.1', 'fedasync+lr=0.05']
    """
    skipped: list[str] = []
    with errors_as_keywords():
        given: dict[str, Any] = {**({} if task is None else {"task": task}), **settings}
        record = None if tuned is None else tuned_settings(tuned)
        specs = (
            specs_of(methods or (), seeds, given, skipped)
            if record is None
            else tuned_specs(record, methods, seeds, given)
        )
        with comparison_bar(progress, len(specs)) as show:
            folder = None if out is None else Path(out)
            made = compare_specs(specs, out=folder, workers=workers, progress=show, tuned=record)
    warn_of(dict.fromkeys(f"{r.label}: {notice}" for r in made.results for notice in r.warnings), stacklevel=2)
    return replace(made, skipped=tuple(as_keywords(line, is_notice=True) for line in skipped))


def compare_specs(
    specs: Sequence[Spec],
    *,
    out: Path | None = None,
    workers: int = 1,
    progress: ShowProgress | None = None,
    command: str | None = None,
    tuned: TunedSettings | None = None,
) -> Comparison:
    """Run the specs, `workers` at a time; `command` is the command line that resumes them, kept in the folder.

    `tuned`: the record of the tuning that the specs come from, also kept there.
    """
    if workers < 1:
        raise BadInput(f"--workers {workers}: must be 1 or more")
    if out is not None and (out / "spec.toml").is_file():
        raise BadInput(f"--out {out}: it holds a run; name another folder")
    folders = [None if out is None else run_folder_of(out, s) for s in specs]
    for i, (spec, folder) in enumerate(zip(specs, folders, strict=True)):
        check_folder(spec, folder, out)
        if folder is not None and folder in folders[:i]:
            raise BadInput(f"--method {spec.label}: another method of this comparison would share the folder {folder}")
    show: ShowProgress = progress or (lambda *_: None)
    jobs = list(zip(specs, folders, strict=True))
    found = _describe_reuse(jobs, out)
    if out is not None and command is not None:
        write_command(out, command)
    if out is not None and tuned is not None:
        make_folder(out)
        write_atomic(out / TUNED, tuned.toml.encode())
    tracking = None if specs[0].track is None else ComparisonTracking(specs[0], out)
    results = run_jobs(jobs, workers=workers, show=show, group=None if tracking is None else tracking.record)
    results = [replace(result, builder=SpecModel(spec)) for spec, result in zip(specs, results, strict=True)]
    comparison = Comparison(
        tuple(results), summarize(results), out, reused=found, tuned="" if tuned is None else tuned.note()
    )
    if out is not None:
        write_atomic(out / SIGNIFICANCE, significance_json(comparison.significance).encode())
        write_atomic(out / "compare.json", to_json(comparison.summary).encode())
    if tracking is not None:
        tracking.end(results, comparison.summary)
    return comparison


def write_command(out: Path, command: str) -> None:
    """Write the command line that resumes what is in a folder."""
    try:
        make_folder(out)
        write_atomic(out / COMMAND, os.fsencode(f"{command}\n"))  # a path may be no UTF-8
    except StorageError as e:
        raise StorageError(f"--out {e}, or name another folder") from e


def _describe_reuse(jobs: Jobs, out: Path | None) -> tuple[str, ...]:
    """Say how many runs are done already and since when, and which of their inputs cannot be compared."""
    done = [(s, f) for s, f in jobs if f is not None and (f / "result.json").is_file()]
    if not done:
        return ()
    made = sorted(datetime.fromtimestamp((f / "result.json").stat().st_mtime) for _, f in done)
    days = list(dict.fromkeys(f"{t:%Y-%m-%d %H:%M}" for t in (made[0], made[-1])))
    were = "was" if len(done) == 1 else "were"
    notices = [f"{len(done)} of {pluralize(len(jobs), 'run')} {were} there already ({out}), made {' to '.join(days)}"]
    objects = sorted({f"{group} {s.name_of(group)} (a Python object)" for s, _ in done for group in s.objects()})
    undigested = sorted({str(file) for s, f in done for file in _undigested(s, f)})
    if unsure := objects + undigested:
        notices.append(
            f"whether {', '.join(unsure)} changed since then is not known; if so, name another --out or remove {out}"
        )
    if objects:
        warnings.warn("; ".join(notices), TarryWarning, stacklevel=4)
    return tuple(notices)


def _undigested(spec: Spec, folder: Path) -> list[Path]:
    """Return the files that the settings name of which the run's folder has no digest."""
    digests = RunFolder(folder).meta().files
    return [file for setting, file in files_of(spec).items() if setting not in digests]
