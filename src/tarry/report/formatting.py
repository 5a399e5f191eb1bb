"""Formatting of results: numbers, table cells and sentences, the same for terminal, Markdown and page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.labels import axis_text, split_label
from ..core.metric import ACCURACY, Metric

if TYPE_CHECKING:
    from ..record.result import Result
    from .tables import MethodRow, Summary

__all__ = [
    "TableCell",
    "count",
    "duration",
    "format_bytes",
    "grid",
    "join_names",
    "key_findings",
    "legend",
    "percent",
    "pluralize",
    "warning_lines",
    "target_in_words",
    "time_unit",
]

NONE = "–"
_MEASURED = re.compile(
    r"\d+(?:\.\d+)?(?:e[+-]?\d+)?(?= times as fast| of its size)"
)  # numbers that differ between runs


@dataclass(frozen=True)
class TableCell:
    """One cell of a table; `secondary` is shown smaller."""

    text: str
    secondary: str = ""
    best: bool = False


def grid(summary: Summary, *, full: bool = False) -> tuple[tuple[str, ...], list[tuple[TableCell, ...]]]:
    """Return the headings and the rows; `full` adds columns for a wide page."""
    on = "" if summary.scored_on == "test" else f"{summary.final_on} "  # said only where there are two sets
    score = (f"{on}{summary.metric.heading}", *(["time to target"] if summary.has_targets else []))
    score += tuple(f"{on}{m.heading}" for m in summary.others)
    score += (_personal_heading(summary),) if summary.personal_epochs else ()
    headings = ("method", *summary.axes, *score, "staleness mean / max", "updates")
    if full:
        headings += ("traffic", "rounds", "server peak", "lost / rejected")
    return headings, [_cells(row, summary, full) for row in summary.rows]


def _cells(row: MethodRow, summary: Summary, full: bool) -> tuple[TableCell, ...]:
    staleness = TableCell(f"{row.staleness_mean:.1f} / {row.staleness_max:.0f}")
    cells = (
        TableCell(split_label(row.label)[0]),
        *(TableCell(axis_text(row.axes[axis]) if axis in row.axes else NONE) for axis in summary.axes),
        *_score(row, summary),
        *_personal(row, summary),
        staleness,
        TableCell(count(row.updates)),
    )
    if full:
        traffic = TableCell(f"{format_bytes(1e6 * row.mb_up)} up", f"{format_bytes(1e6 * row.mb_down)} down")
        failures = TableCell(f"{count(row.lost)} / {count(row.rejected)}")
        cells += (traffic, TableCell(count(row.rounds)), TableCell(format_bytes(1e6 * row.peak_server_mb)), failures)
    return cells


def _score(row: MethodRow, summary: Summary) -> tuple[TableCell, ...]:
    time = (_time(row, summary),) if summary.has_targets else ()
    return (_value(row, summary, summary.metric), *time, *(_value(row, summary, m) for m in summary.others))


def _value(row: MethodRow, summary: Summary, metric: Metric) -> TableCell:
    """Return the cell of a metric: mean ± sd over seeds, marked where it is the best."""
    means = [r.metrics[metric.name].mean for r in summary.rows if metric.name in r.metrics]
    found = row.metrics.get(metric.name)
    if found is None or found.mean is None:
        return TableCell(NONE)
    best = max((m for m in means if m is not None), key=lambda m: metric.sign * m)
    spread = "" if found.sd is None else f" ± {metric.plain(found.sd)}"
    return TableCell(f"{metric.plain(found.mean)}{spread}", best=len(summary.rows) > 1 and found.mean == best)


def _personal(row: MethodRow, summary: Summary) -> tuple[TableCell, ...]:
    """Return 88.9 ± 8.9 over clients, and the value before fine-tuning; no cell without --personalize."""
    if not summary.personal_epochs:
        return ()
    if row.personal is None or row.personal_sd is None or row.personal_before is None:
        return (TableCell(NONE),)
    best = max(
        (r.personal for r in summary.rows if r.personal is not None), key=lambda x: summary.personal_metric.sign * x
    )
    metric = summary.personal_metric
    text = f"{metric.plain(row.personal)} ± {metric.plain(row.personal_sd)}"
    before = f"{metric.plain(row.personal_before)} before"
    return (TableCell(text, before, best=len(summary.rows) > 1 and row.personal == best),)


def _personal_heading(summary: Summary) -> str:
    metric = summary.personal_metric
    return "personal %" if metric.name == ACCURACY.name else f"personal {metric.heading}"


def _time(row: MethodRow, summary: Summary) -> TableCell:
    """Return 0.39× and 12 min; only the minutes if there is no baseline."""
    if row.time_to_target is None:
        return TableCell(NONE if summary.target is None else "not reached")
    took = duration(row.time_to_target)
    if row.reached < row.runs:
        return TableCell(f"{row.reached} of {row.runs} runs", took)
    first = _fastest(summary)
    best = row in first and len(first) < len(summary.rows)
    if row.relative_time is None:
        return TableCell(took, best=best)
    return TableCell(_times(row, summary), took, best=best)


def _always(summary: Summary) -> list[MethodRow]:
    """Return the methods that reached the target in every run."""
    return [r for r in summary.rows if r.time_to_target is not None and r.reached == r.runs]


def _fastest(summary: Summary) -> list[MethodRow]:
    """Return the fastest of these; several if their mean times are equal."""
    always = _always(summary)
    least = min((r.time_to_target for r in always if r.time_to_target is not None), default=None)
    return [r for r in always if r.time_to_target == least]


def target_in_words(summary: Summary) -> str:
    """Return a text on the target and the time to it."""
    if not summary.has_targets:
        return ""
    metric, way = summary.metric, "above" if summary.metric.higher_is_better else "below"
    share = f"{100 * (summary.fraction if metric.higher_is_better else 1 / summary.fraction):.4g} %"
    trivial = "an unknown score" if summary.trivial_score is None else metric.number(summary.trivial_score)
    floor = f"{trivial}, which needs no learning"
    if summary.target is None:
        return f"No target: no method ended with {_article(metric.name)} of which {share} lies {way} {floor}."
    what = "as given by --target." if summary.has_given_target else _worst_in_words(summary, share, floor)
    text = (
        f"Target: {metric.number(summary.target)} {metric.name}, {what}"
        f" Time to target: {summary.clock} until the first evaluation at or {way} it"
    )
    if any(r.relative_time is not None for r in summary.rows):
        text = f"{text}, relative to {summary.baseline} (1×)"
    if summary.scored_on == summary.final_on:
        return f"{text}."
    return (
        f"{text}. Targets and times are on the {summary.scored_on} set, and final scores on the {summary.final_on} set."
    )


def _worst_in_words(summary: Summary, share: str, floor: str) -> str:
    metric = summary.metric
    worst = min(summary.learned, key=lambda r: metric.sign * (r.score or 0.0))
    others = [r.label for r in summary.rows if r.score is not None and r not in summary.learned]
    where = "of a method that learned" if others else "here"
    extreme, than = ("lowest", "more") if metric.higher_is_better else ("highest", "less")
    not_so = f" {join_names(others)} did not: {share} of the {metric.name} is no {than} than {floor}." if others else ""
    return f"{share} of the {extreme} final {metric.name} {where} ({worst.label}).{not_so}"


def _article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def legend(summary: Summary) -> str:
    """Return a text on the columns that need an explanation."""
    return " ".join(text for text in (target_in_words(summary), _personal_in_words(summary)) if text)


def _personal_in_words(summary: Summary) -> str:
    if not summary.personal_epochs:
        return ""
    epochs = join_names([str(e) for e in summary.personal_epochs])
    tuned = f"{epochs} {'epoch' if epochs == '1' else 'epochs'} of fine-tuning on its own data"
    return (
        f"Personal: {summary.personal_metric.name} on the test set weighed by each client's own classes, mean ±"
        " standard deviation over "
        f"clients, after {tuned if epochs != '0' else 'no fine-tuning'}; before: of the one model for all."
    )


def warning_lines(results: Sequence[Result]) -> list[str]:
    """Return how clients were trained, if there was a choice, and the warnings of runs; each once, after its labels."""
    labeled = [(r.label, r.executor_info) for r in results if r.executor_info] + [
        (r.label, s) for r in results for s in r.warnings
    ]
    about: dict[tuple[str, ...], dict[str, None]] = {}
    measured: dict[tuple[str, ...], list[list[str]]] = {}
    for label, text in labeled:
        words = tuple(_MEASURED.split(text))
        about.setdefault(words, {})[label] = None
        measured.setdefault(words, []).append(_MEASURED.findall(text))
    lines = []
    for words, labels in about.items():
        spans = [_span(found) for found in zip(*measured[words], strict=True)]
        text = "".join(word + span for word, span in zip(words, [*spans, ""], strict=True))
        lines.append(f"{', '.join(labels)}: {text}")
    return lines


def _span(found: Sequence[str]) -> str:
    """Return the range of the numbers."""
    least, most = min(found, key=float), max(found, key=float)
    return least if least == most else f"{least} to {most}"


def key_findings(summary: Summary) -> list[str]:
    """Return the main results of the rows as sentences."""
    sentences = [_best(summary), _first(summary), *_never(summary), _unequal(summary)]
    return [s for s in sentences if s]


def _best(summary: Summary) -> str:
    metric = summary.metric
    found = [(r, r.score, r.score_sd) for r in summary.rows if r.score is not None]
    found.sort(key=lambda f: -metric.sign * f[1])
    what = f"the {'highest' if metric.higher_is_better else 'lowest'} {metric.name}"
    values = [_final(value, sd, r.runs, metric) for r, value, sd in found]
    if not found:
        return ""
    if len(found) == 1:
        return f"{found[0][0].label} ended with {what.split()[-1]} {values[0]}."
    (top, best, sd), (second, next_best, next_sd) = found[:2]
    if best == next_best:
        equal = [r.label for r, value, _ in found if value == best]
        return f"{join_names(equal)} ended with {what}, each {_final(best, None, 1, metric)}."
    text = f"{top.label} ended with {what}, {values[0]}; next came {second.label} with {values[1]}."
    if sd is None or next_sd is None:
        return f"{text} With a single seed, a small difference may be chance."
    if abs(best - next_best) < max(sd, next_sd):
        return f"{text} They differ by less than the standard deviation between seeds: the order is not settled."
    return text


def _first(summary: Summary) -> str:
    if summary.target is None:
        return ""
    target = f"the target of {summary.metric.number(summary.target)}"
    first = _fastest(summary)
    if not first:
        return f"No method reached {target} in all of its runs."
    time = first[0].time_to_target
    assert time is not None
    after = f"after {duration(time)} of {summary.clock}" + (" (mean over seeds)" if first[0].runs > 1 else "")
    if len(first) == len(summary.rows) > 1:
        return f"All methods reached {target} equally fast, {after}."
    names = join_names([r.label for r in first])
    text = f"{names} reached {target} {'first, ' if len(summary.rows) > 1 else ''}{after}"
    if len(first) == 1 and first[0].relative_time is not None and first[0].label != summary.baseline:
        return f"{text}: {_times(first[0], summary)} the time of {summary.baseline}."
    return f"{text}."


def _never(summary: Summary) -> list[str]:
    """Return sentences on methods that missed the target; none if all did, which `_first` says."""
    if summary.target is None or not _always(summary):
        return []
    missing = [r for r in summary.rows if r.reached < r.runs]
    return [
        f"{r.label} did not reach the target."
        if r.reached == 0
        else f"{r.label} reached the target in {r.reached} of its {r.runs} runs."
        for r in missing
    ]


def _unequal(summary: Summary) -> str:
    lengths = [r.virtual_time for r in summary.rows]
    if max(lengths) <= 1.01 * min(lengths):
        return ""
    return (
        f"The methods did not run for the same {summary.clock} ({duration(min(lengths))} to {duration(max(lengths))}): "
        "the final values are not taken at the same moment."
    )


def _final(value: float, sd: float | None, runs: int, metric: Metric) -> str:
    text = metric.number(value)
    if sd is None:
        return text
    if metric.is_share:
        return f"{text} (sd {100 * sd:.1f} points over {runs} seeds)"
    return f"{text} (sd {metric.plain(sd)}, {runs} seeds)"


def time_unit(seconds: float) -> tuple[str, float]:
    """Return a unit for a span of time, and its length in seconds."""
    for unit, length, up_to in (("s", 1.0, 120.0), ("min", 60.0, 120 * 60.0), ("h", 3600.0, 72 * 3600.0)):
        if seconds < up_to:
            return unit, length
    return "days", 86400.0


def duration(seconds: float) -> str:
    """Return a time as 45 s, 12.3 min, 4.5 h or 6.0 days."""
    unit, length = time_unit(seconds)
    value = seconds / length
    return f"{value:.3g} {unit}" if value < 10 else f"{value:,.1f} {unit}".replace(".0 ", " ")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _times(row: MethodRow, summary: Summary) -> str:
    ratio = row.relative_time
    assert ratio is not None
    if row.label == summary.baseline:
        return "1×"
    return f"{ratio:.2g}×" if ratio < 0.1 else f"{ratio:.2f}×" if ratio < 10 else f"{ratio:,.1f}×"


def format_bytes(n: float) -> str:
    """Return a size as 980 B, 12.3 kB, 4.5 MB or 1,234 GB."""
    unit, length = next(((u, x) for u, x in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if n >= 0.9995 * x), ("B", 1.0))
    value = n / length
    return f"{value:.1f} {unit}" if value < 99.95 and length > 1 else f"{value:,.0f} {unit}"


def count(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) or x >= 100 else f"{x:.1f}"


def pluralize(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def join_names(names: Sequence[str]) -> str:
    """Return the names joined by commas and "and"; a long list is cut."""
    if len(names) > 8:
        names = [*names[:6], f"{len(names) - 6} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
