"""Summary of runs: a row for each method label, over its seeds.

    score          the first metric of the runs; accuracy by default
    target         the --target of all the runs; where they have none in common,
                   fraction × the lowest final score (mean over seeds) among the methods         OrthoFL, Sec. 5.1
                   for which this is above the trivial score: the best of the untrained models and of constant
                   answers. So a method that learns nothing sets no target. Of errors, whose lower values are better,
                   it is the highest final score / fraction, below that of the untrained models
    time to it     virtual time of a run's first evaluation at the target or better
    relative time  a method's mean time to the target / the baseline's (1×)

Spread is the sample standard deviation over seeds. None stands for a mean with a missing value, a spread of one run,
and a relative time if a run of either side did not reach the target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from statistics import fmean, stdev
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..core.errors import BadInput, near
from ..core.labels import split_label
from ..core.metric import ACCURACY, LOSS, Metric
from ..core.printable import html_text, markdown_text, printable
from ..record.result import Result
from ..record.views import data_frame
from .formatting import TableCell, grid, legend

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "TEXT_WIDTH",
    "Curve",
    "MethodRow",
    "Summary",
    "by_label",
    "clock",
    "held_mean",
    "finite_or_none",
    "markdown",
    "mean_curve",
    "metrics_of_runs",
    "plain_table",
    "summarize",
    "table_html",
    "to_json",
    "with_axis_columns",
]

_MB = 1e6
TEXT_WIDTH = 100  # characters of a line below the plain table


class MeanAndSpread(NamedTuple):
    """A mean over seeds and its standard deviation."""

    mean: float | None
    sd: float | None


@dataclass(frozen=True)
class MethodRow:
    """One method label over its runs: means, unless the comment says otherwise."""

    label: str
    method: str
    runs: int
    score: float | None  # the final value of the first metric, on the test set
    score_sd: float | None
    loss: float | None
    loss_sd: float | None
    reached: int  # runs that reached the target
    time_to_target: float | None  # over the runs that reached it
    relative_time: float | None
    virtual_time: float
    staleness_mean: float
    staleness_p95: float
    staleness_max: float  # the largest of all runs
    updates: float
    rounds: float
    mb_up: float
    mb_down: float
    peak_server_mb: float  # the largest of all runs
    lost: float
    rejected: float
    personal: float | None = None  # --personalize: mean over clients of their own score
    personal_sd: float | None = None  # over clients
    personal_before: float | None = None  # before fine-tuning
    metrics: Mapping[str, MeanAndSpread] = field(default_factory=dict)  # the final value of every metric, by name

    @property
    def accuracy(self) -> float | None:
        """Return the final accuracy, if it was measured."""
        return self.metrics["accuracy"].mean if "accuracy" in self.metrics else None

    @property
    def axes(self) -> dict[str, float | str]:
        """Return the values of the settings that the comparison varies, which are in the label."""
        return split_label(self.label)[1]


@dataclass(frozen=True)
class Summary:
    """Rows in the order their labels first appeared. `baseline` is a label: the 1× of relative times."""

    task: str
    seeds: tuple[int, ...]
    baseline: str | None
    fraction: float
    trivial_score: float | None  # score without learning; None if unknown
    target: float | None
    rows: tuple[MethodRow, ...]
    has_given_target: bool = False  # whether the target is that of the runs, --target
    personal_epochs: tuple[int, ...] = ()  # --personalize of the runs; () if none has it
    clock: str = "virtual time"
    metric: Metric = ACCURACY  # what the score is
    scored_on: str = "test"  # the set that curves, targets and times are on
    final_on: str = "test"  # the set that final scores are on
    others: tuple[Metric, ...] = ()  # the further metrics that all runs have
    personal_metric: Metric = ACCURACY  # what --personalize scores clients by

    def to_frame(self) -> DataFrame:
        """Return a pandas data frame with a row for each method."""
        return data_frame(with_axis_columns(_frame_row(row, self)) for row in self.rows)

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the settings that the comparison varies."""
        return tuple(dict.fromkeys(axis for row in self.rows for axis in row.axes))

    @property
    def learned(self) -> list[MethodRow]:
        """Return the rows that may set the target."""
        return [r for r in self.rows if _target_of(r.score, self.metric, self.fraction, self.trivial_score) is not None]

    @property
    def best(self) -> str | None:
        """Return the label with the best score; None if none has one."""
        scores = {row.label: self.metric.sign * row.score for row in self.rows if row.score is not None}
        return max(scores, key=scores.__getitem__, default=None)

    @property
    def has_targets(self) -> bool:
        """Return whether there are targets: the mean loss alone has none, unless one is given."""
        return self.metric.name != LOSS.name or self.target is not None


def with_axis_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a data frame with a column for each axis in its label: lr, or updates_setting beside updates."""
    axes = split_label(row["label"])[1]
    return {**row, **{f"{name}_setting" if name in row else name: value for name, value in axes.items()}}


class Curve(NamedTuple):
    """A mean over runs at the times (or numbers of updates) of all their evaluations."""

    x: list[float]
    mean: list[float]
    sd: list[float] | None  # None: one run


def summarize(results: Sequence[Result], *, baseline: str | None = None, fraction: float = 0.95) -> Summary:
    """Return the rows of a comparison; `baseline` is the method or label of time 1×, by default fedavg."""
    _check(results, fraction)
    groups = by_label(results)
    metric, others = metrics_of_runs(results)
    trivial = _trivial_score(results, metric)
    ends = [[(r.validation_metrics or r.final_metrics).get(metric.name) for r in runs] for runs in groups.values()]
    finals = [_mean(list(map(finite_or_none, of_runs))) for of_runs in ends]
    own = {r.target for r in results}
    given_target = results[0].target if len(own) == 1 else None
    target = _usual_target(finals, metric, fraction, trivial) if given_target is None else given_target
    rows = [_row(label, runs, target, metric) for label, runs in groups.items()]
    base = _base(rows, baseline)
    return Summary(
        task=results[0].task,
        seeds=tuple(sorted({r.seed for r in results})),
        baseline=None if base is None else base.label,
        fraction=fraction,
        trivial_score=trivial,
        target=target,
        rows=tuple(replace(r, relative_time=_relative(r, base)) for r in rows),
        has_given_target=given_target is not None,
        personal_epochs=tuple(sorted({r.personalization["epochs"] for r in results if r.personalization})),
        clock=clock(results),
        metric=metric,
        scored_on=results[0].scored_on,
        final_on=results[0].final_on,
        others=others,
        personal_metric=_personal_metric(results),
    )


def _personal_metric(results: Sequence[Result]) -> Metric:
    """Return the metric by which the runs score clients."""
    names = {r.personalization.get("metric") for r in results if r.personalization} - {None}
    return next((m for r in results for m in r.metrics if m.name in names), ACCURACY)


def metrics_of_runs(results: Sequence[Result]) -> tuple[Metric, tuple[Metric, ...]]:
    """Return the metric that is the score, and the others that all runs have; runs with other scores are rejected."""
    scored = [r for r in results if r.final_metrics] or list(results)
    first = {r.metric.name: r.metric for r in scored}
    if len(first) > 1 and first.keys() <= {"accuracy", "loss"}:  # some of the runs have no accuracy
        return first["accuracy"], ()
    if len(first) > 1:
        raise BadInput(f"the runs have different scores: {', '.join(sorted(first))}; give those of one --metric")
    names = set.intersection(*({m.name for m in r.metrics} for r in scored))
    return scored[0].metric, tuple(m for m in scored[0].metrics[1:] if m.name in names)


def _usual_target(
    finals: Sequence[float | None], metric: Metric, fraction: float, trivial: float | None
) -> float | None:
    """Return the easiest of the targets that the methods' final scores set."""
    targets = [t for final in finals if (t := _target_of(final, metric, fraction, trivial)) is not None]
    return min(targets, key=lambda t: metric.sign * t, default=None)


def _target_of(final: float | None, metric: Metric, fraction: float, trivial: float | None) -> float | None:
    """Return the target that a final score sets: one that is a little worse; None if it needs no learning."""
    if final is None or final <= 0 or metric.name == LOSS.name:
        return None
    target = fraction * final if metric.higher_is_better else final / fraction
    return None if trivial is not None and metric.reaches(trivial, target) else target


def clock(results: Sequence[Result]) -> str:
    """Return the name of the clock of these runs."""
    kinds = {r.clock for r in results}
    return {"virtual": "virtual time", "wall": "wall-clock time"}[kinds.pop()] if len(kinds) == 1 else "time"


def _trivial_score(results: Sequence[Result], metric: Metric) -> float | None:
    """Return the best score that a run reaches without learning: of the first weights, or of constant answers."""
    first = [r.curve[0].metrics.get(metric.name) for r in results if r.curve and r.curve[0].updates == 0]
    constant = [r.majority_accuracy if metric.name == ACCURACY.name else None for r in results]
    known = [x for score in (*first, *constant) if (x := finite_or_none(score)) is not None]
    return max(known, key=lambda score: metric.sign * score, default=0.0 if metric.is_share else None)


def _base(rows: Sequence[MethodRow], name: str | None) -> MethodRow | None:
    found = {r.method: r for r in reversed(rows)} | {r.label: r for r in rows}
    if name is not None and name not in found:
        raise BadInput(f"--baseline {name}: no run here is of such a method.{near(name, found)}")
    return found.get(name or "fedavg")


def by_label(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the runs of each label, labels in the order of first appearance."""
    groups: dict[str, list[Result]] = {}
    for r in results:
        groups.setdefault(r.label, []).append(r)
    return groups


def finite_or_none(x: float | None) -> float | None:
    """Return a number, or None if it is missing, NaN or infinite (null in a record on disk)."""
    return x if x is not None and isfinite(x) else None


def mean_curve(
    results: Sequence[Result],
    *,
    over: Literal["time", "updates"] = "time",
    of: str = "accuracy",
) -> Curve:
    """Return the mean curve of the runs of one label; each holds its value until its next evaluation.

    It begins where all runs have a value; runs without values are left out.
    """
    curves = [
        [(p.time, float(p.updates), y) for p in r.curve if (y := finite_or_none(p.metrics.get(of))) is not None]
        for r in results
    ]
    return held_mean([[(time if over == "time" else updates, y) for time, updates, y in c] for c in curves])


def held_mean(curves: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    """Return the mean of curves of (x, value); each holds a value until its next, from where all have one."""
    runs = [np.array(c, dtype=np.float64) for c in curves if c]
    if not runs:
        return Curve([], [], None)
    xs = np.unique(np.concatenate([c[:, 0] for c in runs]))
    xs = xs[xs >= max(c[0, 0] for c in runs)]
    held = np.stack([c[np.searchsorted(c[:, 0], xs, side="right") - 1, 1] for c in runs])
    sd = held.std(axis=0, ddof=1).tolist() if len(runs) > 1 else None
    return Curve(xs.tolist(), held.mean(axis=0).tolist(), sd)


def to_json(summary: Summary) -> str:
    """Return every number unrounded, as in `compare.json`."""
    plain = asdict(summary)
    plain |= {"rows": [_frame_row(row, summary) for row in summary.rows], "trivial_score": summary.trivial_score or 0.0}
    del plain["metric"], plain["others"], plain["personal_metric"]
    if summary.metric.name in ("accuracy", "loss") and not summary.others:
        plain = {"trivial_accuracy" if key == "trivial_score" else key: value for key, value in plain.items()}
    else:
        named = [(m.name, m.higher_is_better, m.unit) for m in (summary.metric, *summary.others)]
        plain["metrics"] = [dict(zip(("name", "higher_is_better", "unit"), m, strict=True)) for m in named]
    return json.dumps(plain, indent=1) + "\n"


def _frame_row(row: MethodRow, summary: Summary) -> dict[str, Any]:
    """Return the numbers of a row: each metric and its spread under its name, first."""
    plain = asdict(row)
    for name in ("metrics", "score", "score_sd", "loss", "loss_sd"):
        del plain[name]
    first = ACCURACY if summary.metric.name == LOSS.name else summary.metric  # of the loss alone: without values
    names = dict.fromkeys([first.name, *(m.name for m in summary.others), LOSS.name])
    found = {name: row.metrics.get(name, MeanAndSpread(None, None)) for name in names}
    values = {key: x for name, v in found.items() for key, x in ((name, v.mean), (f"{name}_sd", v.sd))}
    label = {name: plain.pop(name) for name in ("label", "method", "runs")}
    return {**label, **values, **plain}


def plain_table(summary: Summary) -> str:
    """Return the table as text in aligned columns, and the legend below."""
    columns, rows = grid(summary)
    texts = [columns, *([printable(f"{c.text}  {c.secondary}".rstrip()) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(columns))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in texts]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], *wrap(printable(legend(summary)), TEXT_WIDTH)])


def markdown(summary: Summary) -> str:
    """Return a Markdown table for GitHub; the best is bold, and the legend is below."""
    columns, rows = grid(summary)
    lines = ["| " + " | ".join(columns) + " |", "|" + "|".join(["---"] + ["---:"] * (len(columns) - 1)) + "|"]
    for row in rows:
        texts = [markdown_text(f"{c.text} ({c.secondary})" if c.secondary else c.text) for c in row]
        lines.append("| " + " | ".join(f"**{t}**" if c.best else t for t, c in zip(texts, row, strict=True)) + " |")
    note = legend(summary)
    return "\n".join(lines) + "\n" + (f"\n{markdown_text(note)}\n" if note else "")


def table_html(summary: Summary) -> str:
    """Return the table as HTML without styles, for a notebook; the best is bold, and the legend is below."""
    columns, rows = grid(summary)
    head = "".join(f"<th>{html_text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell_html, row))}</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table><p>{html_text(legend(summary))}</p>"


def _cell_html(cell: TableCell) -> str:
    text = html_text(cell.text) + (f" <small>{html_text(cell.secondary)}</small>" if cell.secondary else "")
    return f"<td><b>{text}</b></td>" if cell.best else f"<td>{text}</td>"


def _check(results: Sequence[Result], fraction: float) -> None:
    if not results:
        raise BadInput("there is nothing to compare: give the folder of at least one finished run")
    problems = [] if 0 < fraction <= 1 else [f"--fraction {fraction:g}: must be above 0 and at most 1"]
    tasks = sorted({r.task for r in results})
    if len(tasks) > 1:
        problems.append(f"runs of different tasks cannot be compared: {', '.join(tasks)}; give those of one task")
    seen: dict[tuple[str, int], Result] = {}
    for r in results:
        first = seen.setdefault((r.label, r.seed), r)
        if first is not r:
            where = f" ({first.out} and {r.out})" if first.out and r.out else ""
            problems.append(f"{r.label} with seed {r.seed} is there twice{where}; leave one out")
    if problems:
        raise BadInput(problems)


def _row(label: str, runs: Sequence[Result], target: float | None, metric: Metric) -> MethodRow:
    names = dict.fromkeys([metric.name, *(name for r in runs for name in r.final_metrics), LOSS.name])
    finals = {name: _mean_and_spread([finite_or_none(r.final_metrics.get(name)) for r in runs]) for name in names}
    times = [t for r in runs if (t := _time_to(target, r, metric)) is not None]
    return MethodRow(
        label=label,
        method=runs[0].method,
        runs=len(runs),
        score=finals[metric.name].mean,
        score_sd=finals[metric.name].sd,
        loss=finals[LOSS.name].mean,
        loss_sd=finals[LOSS.name].sd,
        reached=len(times),
        time_to_target=fmean(times) if times else None,
        relative_time=None,
        virtual_time=fmean(r.virtual_time for r in runs),
        staleness_mean=fmean(r.staleness.mean for r in runs),
        staleness_p95=fmean(r.staleness.p95 for r in runs),
        staleness_max=max(r.staleness.max for r in runs),
        updates=fmean(r.updates for r in runs),
        rounds=fmean(r.rounds for r in runs),
        mb_up=fmean(r.bytes_up for r in runs) / _MB,
        mb_down=fmean(r.bytes_down for r in runs) / _MB,
        peak_server_mb=max(r.peak_server_bytes for r in runs) / _MB,
        lost=fmean(r.lost for r in runs),
        rejected=fmean(r.rejected for r in runs),
        personal=_personal(runs, "after", "mean"),
        personal_sd=_personal(runs, "after", "sd"),
        personal_before=_personal(runs, "before", "mean"),
        metrics=finals,
    )


def _mean_and_spread(values: Sequence[float | None]) -> MeanAndSpread:
    return MeanAndSpread(_mean(values), _sd(values))


def _personal(runs: Sequence[Result], when: str, what: str) -> float | None:
    return _mean([finite_or_none(r.personalization[when][what]) if r.personalization else None for r in runs])


def _time_to(target: float | None, run: Result, metric: Metric) -> float | None:
    if target is None:
        return None
    return next((p.time for p in run.curve if metric.reaches(p.metrics.get(metric.name), target)), None)


def _relative(row: MethodRow, base: MethodRow | None) -> float | None:
    """Return the relative time, or None; also if the baseline reached the target before any training."""
    if base is None or row.reached < row.runs or base.reached < base.runs:
        return None
    if row.time_to_target is None or not base.time_to_target:
        return None
    return row.time_to_target / base.time_to_target


def _mean(values: Sequence[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return fmean(there) if len(there) == len(values) else None


def _sd(values: Sequence[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return stdev(there) if len(there) == len(values) > 1 else None
