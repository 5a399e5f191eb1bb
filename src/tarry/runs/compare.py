"""Comparisons: several methods and seeds with the same task, partition, first weights and delays.

Durations are a function of (seed, client, visit), so every method of a seed meets the same ones. Runs are independent
and go `workers` at a time; a comparison in a folder reuses the runs that are there. OUT/command.txt is the command
line that began it.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from ..config.keywords import Named, SharedSettings, lists_keywords
from ..config.spec import Spec
from ..core.errors import (
    BadInput,
    DamagedFile,
    StorageError,
    TarryWarning,
    as_keywords,
    errors_as_keywords,
    near,
    warn_of,
)
from ..core.method import Method
from ..core.metric import other_metrics
from ..core.printable import printable
from ..core.registry import UnknownName
from ..core.task import Task
from ..executors.timing import TrialCache
from ..methods import methods as registered
from ..record.digests import EXECUTION_SETTINGS
from ..record.result import Result
from ..record.run_folder import RunFolder, object_comments
from ..record.storage import make_folder, write_atomic
from ..record.views import CurveX, curve_rows, data_frame, metric_named, plot_curve
from ..report.formatting import pluralize
from ..report.page import write_page
from ..report.plots import draw_curve
from ..report.tables import (
    Summary,
    by_label,
    markdown,
    mean_curve,
    plain_table,
    summarize,
    table_html,
    to_json,
)
from .named_files import changed_files, files_of
from .parallel import Jobs, RunOne, ShowProgress, run_in_processes
from .parallel_ray import run_on_ray
from .progress_bars import comparison_bar
from .result import SpecModel
from .run import Progress, resume_folder, run_spec
from .simulation import build_simulation
from .tracking import ComparisonTracking, GroupRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = ["COMMAND", "Comparison", "compare", "compare_specs", "specs_of"]

COMMAND = "command.txt"


@dataclass(frozen=True, repr=False)
class Comparison(Sequence[Result]):
    """A finished comparison: a sequence of its runs, and the table made of them.

    >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
    >>> len(c), c[0].label, [run.seed for run in c["fedasync"]]
    (4, 'fedavg', [0, 1])
    >>> print(str(c).splitlines()[0])
    method    accuracy %  time to target  staleness mean / max  updates
    """

    results: tuple[Result, ...]
    summary: Summary  # a row for each method
    out: Path | None = None
    skipped: tuple[str, ...] = ()  # with `all`: the methods that do not fit the settings, and why
    reused: tuple[str, ...] = ()  # the runs that the folder held already, and what about them cannot be checked

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, key: int) -> Result: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Result, ...]: ...

    @overload
    def __getitem__(self, key: str) -> list[Result]: ...

    def __getitem__(self, key: int | slice | str) -> Result | tuple[Result, ...] | list[Result]:
        """Return the run at an index, or the runs of a label."""
        if not isinstance(key, str):
            return self.results[key]
        groups = by_label(self.results)
        if key not in groups:
            raise UnknownName(f"{key}: no run here has this label.{near(key, groups)}")
        return groups[key]

    @property
    def best(self) -> str | None:
        """The label with the best mean score: the highest accuracy, the lowest loss, as the metric has it.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> best = max(c.summary.rows, key=lambda row: row.score)
        >>> c.best == best.label
        True
        """
        return self.summary.best

    def to_markdown(self) -> str:
        """Return the table in Markdown, with the best value in bold.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> print(c.to_markdown().splitlines()[0])
        | method | accuracy % | time to target | staleness mean / max | updates |
        """
        return markdown(self.summary)

    def report(self, path: str | Path) -> Path:
        """Write the page that `tarry compare` writes: an HTML file with the table and plots.

        >>> import tempfile
        >>> c = tarry.compare(["fedasync"], "digits", seeds=[0], clients=3, updates=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = c.report(f"{folder}/report.html").read_text()
        >>> "fedasync" in page
        True
        """
        path, runs = Path(path), {"runs": str(len(self))}
        write_page(path, self, self.summary, title="Comparison", settings=runs, notices=self.skipped)
        return path

    def to_frame(self, rows: Literal["runs", "evaluations"] = "runs") -> DataFrame:
        """Return a pandas data frame with a row for each run, or for each evaluation of each run.

        The row of a run has its numbers, without curves and weights.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> c.to_frame().groupby("label").final_accuracy.count().to_dict()
        {'fedasync': 2, 'fedavg': 2}
        >>> list(c.to_frame("evaluations").columns)
        ['label', 'seed', 'time', 'updates', 'accuracy', 'loss']
        """
        if rows not in ("runs", "evaluations"):
            raise BadInput(f"rows={rows!r}: must be runs or evaluations")
        if rows == "runs":
            return data_frame(_numbers(run) for run in self.results)
        curves = [(run, *curve_rows(run)) for run in self.results]
        return data_frame(
            {"label": run.label, "seed": run.seed, **dict(zip(columns, row, strict=True))}
            for run, points, columns in curves
            for row in points
        )

    def plot(self, x: CurveX = "time", y: str = "score", ax: Axes | None = None) -> Axes:
        """Draw each label's mean curve, of the score or the metric y, and a band of one sd over seeds; return the axes.

        >>> from matplotlib.figure import Figure
        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> axes = c.plot(ax=Figure().add_subplot())
        >>> [text.get_text() for text in axes.get_legend().get_texts()]
        ['fedavg', 'fedasync']
        """
        with errors_as_keywords():
            axes, metric = plot_curve(self[0], x, y, ax), metric_named(self[0], y)
        axes.lines[-1].remove()  # the run gave the axes their labels
        for i, (label, runs) in enumerate(by_label(self.results).items()):
            curve = mean_curve(runs, over=x, of=metric.name)
            if curve.x:
                draw_curve(axes, curve, i, steps=x == "updates" and len(runs) > 1, label=printable(label))
        axes.legend()
        return axes

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table, with the best value in bold."""
        return table_html(self.summary)

    def __repr__(self) -> str:
        return plain_table(self.summary)


def _numbers(run: Result) -> dict[str, Any]:
    """Return the fields of a result that are numbers or words."""
    plain = {f.name: getattr(run, f.name) for f in fields(run)}
    staleness = {f"staleness_{name}": value for name, value in run.staleness._asdict().items()}
    others = {f"final_{name}": value for name, value in other_metrics(run.final_metrics).items()}
    numbers = {k: v for k, v in plain.items() if isinstance(v, int | float | str) or v is None}
    return {**numbers, **staleness, **others}


@lists_keywords(SharedSettings)
def compare(
    methods: Sequence[Named | Method],
    task: Named | Task = "digits",
    *,
    seeds: Iterable[int] = (0, 1, 2),
    out: str | Path | None = None,
    workers: int = 1,
    progress: bool | ShowProgress | None = None,
    **settings: Unpack[SharedSettings],
) -> Comparison:
    """Run every method with every seed; settings and `progress` as for `run`.

    >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0], time=1000)
    >>> [row.label for row in c.summary.rows]
    ['fedavg', 'fedasync']
    """
    skipped: list[str] = []
    with errors_as_keywords():
        specs = specs_of(methods, seeds, {"task": task, **settings}, skipped)
        with comparison_bar(progress, len(specs)) as show:
            made = compare_specs(specs, out=None if out is None else Path(out), workers=workers, progress=show)
    warn_of(dict.fromkeys(f"{r.label}: {notice}" for r in made.results for notice in r.warnings), stacklevel=2)
    return replace(made, skipped=tuple(as_keywords(line, is_notice=True) for line in skipped))


def specs_of(
    methods: Sequence[Any], seeds: Iterable[int], settings: dict[str, Any], skipped: list[str] | None = None
) -> list[Spec]:
    """Return a spec for each run; one error names the problems of all of them.

    `all` among the methods stands for every registered method that fits the settings: `skipped` gets a line for each
    of the others.
    """
    seeds, named = list(seeds), [m for m in methods if m != "all"]
    wanted = [*named, *(n for n in registered if n not in named)] if len(named) < len(methods) else named
    if not wanted or not seeds:
        raise BadInput("a comparison needs at least one --method and one of --seeds")
    specs, rejected_methods = list[Spec](), list[tuple[Any, tuple[str, ...]]]()
    for method in wanted:
        try:
            made = [Spec.of({**settings, "method": method, "seed": seed}) for seed in seeds]
            build_simulation(made[0])
            specs += made
        except BadInput as e:
            rejected_methods.append((method, e.problems))
    if rejected := [m for m in rejected_methods if not specs or m[0] in named]:
        raise BadInput(_merged_problems(rejected, len(wanted)))
    if skipped is not None:
        skipped += [f"{method} is left out: {' '.join(problems)}" for method, problems in rejected_methods]
    keys = [(s.label, s.seed) for s in specs]
    if twice := next((i for i, k in enumerate(keys) if k in keys[:i]), None):
        way_out = _how_to_rename(specs[twice]) if len(set(seeds)) == len(seeds) else "name every seed once"
        raise BadInput(f"--method {keys[twice][0]}: it is there twice with seed {keys[twice][1]}; {way_out}")
    return specs


def _how_to_rename(spec: Spec) -> str:
    """Return a text on how to give the method another name."""
    if isinstance(spec.method, Method):
        return (
            "give one another name, dataclasses.replace(method, name=...), or name its factory:"
            " 'FILE.py:FACTORY:PARAMETER=VALUE' is called by its parameters too"
        )
    if ".py:" in spec.method.name:
        return "leave one out, or call its factory otherwise"
    return "leave one out"


def _merged_problems(rejected_methods: list[tuple[Any, tuple[str, ...]]], wanted: int) -> list[str]:
    """Return every problem once, with the methods that have it unless the problem names them or all have it."""
    methods_by_problem: dict[str, list[str]] = {}
    for method, problems in rejected_methods:
        for problem in problems:
            methods_by_problem.setdefault(problem, []).append(str(getattr(method, "name", method)))
    clear = [
        p
        for p, names in methods_by_problem.items()
        if len(names) == wanted or all(f"--method {n}:" in p for n in names)
    ]
    return [p if p in clear else f"{p} (--method {', '.join(names)})" for p, names in methods_by_problem.items()]


def compare_specs(
    specs: Sequence[Spec],
    *,
    out: Path | None = None,
    workers: int = 1,
    progress: ShowProgress | None = None,
    command: str | None = None,
) -> Comparison:
    """Run the specs, `workers` at a time; `command` is the command line that resumes them, kept in the folder."""
    if workers < 1:
        raise BadInput(f"--workers {workers}: must be 1 or more")
    if out is not None and (out / "spec.toml").is_file():
        raise BadInput(f"--out {out}: it holds a run; name another folder")
    folders = [None if out is None else out / _folder_name(s.label) / f"seed-{s.seed}" for s in specs]
    for i, (spec, folder) in enumerate(zip(specs, folders, strict=True)):
        _check_folder(spec, folder, out)
        if folder is not None and folder in folders[:i]:
            raise BadInput(f"--method {spec.label}: another method of this comparison would share the folder {folder}")
    show: ShowProgress = progress or (lambda *_: None)
    jobs = list(zip(specs, folders, strict=True))
    found = _describe_reuse(jobs, out)
    if out is not None and command is not None:
        _write_command(out, command)
    tracking = None if specs[0].track is None else ComparisonTracking(specs[0], out)
    one = _one if tracking is None else partial(_one, group=tracking.record)
    if specs[0].executor == "ray":
        results = _on_ray(jobs, workers, show, one)
    elif workers == 1 or len(jobs) == 1 or not sys.platform.startswith("linux"):
        trials = TrialCache()
        results = [one(s, f, lambda p, i=i, s=s: show(i, s, p), trials) for i, (s, f) in enumerate(jobs)]  # type: ignore[misc]
    else:
        at_once, timeout = min(workers, len(jobs)), specs[0].worker_timeout
        results = run_in_processes(jobs, one=one, workers=at_once, show=show, timeout=timeout)
    results = [replace(result, builder=SpecModel(spec)) for spec, result in zip(specs, results, strict=True)]
    summary = summarize(results)
    if out is not None:
        write_atomic(out / "compare.json", to_json(summary).encode())
    if tracking is not None:
        tracking.end(results, summary)
    return Comparison(tuple(results), summary, out, reused=found)


def _write_command(out: Path, command: str) -> None:
    try:
        make_folder(out)
        write_atomic(out / COMMAND, os.fsencode(f"{command}\n"))  # a path may be no UTF-8
    except StorageError as e:
        raise StorageError(f"--out {e}, or name another folder") from e


def _folder_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", label)


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


def _check_folder(spec: Spec, folder: Path | None, out: Path | None) -> None:
    if folder is None or not RunFolder(folder).spec.is_file():
        return
    try:
        there, here = _what_matters(RunFolder(folder).spec_text()), _what_matters(spec.to_toml())
    except (ValueError, RecursionError) as e:
        raise DamagedFile(f"{folder / 'spec.toml'} cannot be read: {e}; remove {folder} to run it again") from e
    if differ := [k for k in there | here if there.get(k) != here.get(k)]:
        differences = "; ".join(f"{k} {_format(there.get(k))} there, {_format(here.get(k))} here" for k in differ)
        raise BadInput(
            f"--out {out}: it holds {spec.label}, seed {spec.seed}, with other settings ({differences});"
            " name another folder with --out"
        )
    if edited := changed_files(folder, spec):
        since = f"is not what it was when {spec.label}, seed {spec.seed}, was run there"
        way_out = f"name another --out, or remove {out} to run all again"
        raise BadInput([f"--out {out}: --{s} {file} {since}; {way_out}" for s, file in edited.items()])


def _what_matters(toml: str) -> dict[str, Any]:
    """The settings that change results, by name; a Python object by its comment."""
    out: dict[str, Any] = {}
    for name, value in tomllib.loads(toml).items():
        table = value if isinstance(value, dict) else {"name": value}
        out |= {name if k == "name" else f"{name}.{k}": v for k, v in table.items()}
    out |= object_comments(toml)
    return {k: v for k, v in out.items() if k not in EXECUTION_SETTINGS}


def _format(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _one(
    spec: Spec,
    folder: Path | None,
    progress: Callable[[Progress], None],
    trials: TrialCache | None = None,
    group: GroupRecord | None = None,
) -> Result:
    if folder is None or not RunFolder(folder).spec.is_file():
        return run_spec(spec, out=folder, progress=progress, trials=trials, group=group)
    objects = {name: getattr(spec, name) for name in (*spec.objects(), "track")}
    result = resume_folder(folder, progress=progress, trials=trials, group=group, **objects)
    result = replace(result, target=spec.target)  # an earlier version stored none
    progress(Progress(1.0, result.virtual_time, result.updates, result.final_score, result.metric))
    return result


def _on_ray(jobs: Jobs, workers: int, show: ShowProgress, one: RunOne) -> list[Result]:
    """Each run is one task of the cluster and trains its clients in its own process."""
    first = jobs[0][0]
    alone = [(replace(s, executor=None, workers=1, address=None, gpus=None), folder) for s, folder in jobs]
    return run_on_ray(alone, one=one, workers=workers, show=show, address=first.address, gpus=first.gpu_share)
