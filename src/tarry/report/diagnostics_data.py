"""Diagnostics of runs (--diagnose): read from their records, as numbers and sentences.

A record may be old, empty or partial: this file drops what is missing, NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from ..record.result import Result
from .formatting import NONE, TableCell, duration, percent
from .tables import Curve, by_label, finite_or_none

__all__ = [
    "Point",
    "runs_with_diagnostics",
    "in_short",
    "mean_of",
    "names",
    "over_time",
    "participation",
    "points",
    "sentences",
    "speed_grid",
    "spread",
    "stretch",
    "validation",
    "visit_time",
]

_APART = frozenset({"cosine", "opposed", "cosine_by_layer", "removed_by_layer"})
_ENOUGH, _LEAST = 8, 12  # updates in a mean if possible; least number of bins of a run
_POSITION = 1.0  # OrthoDyn's phase: 0 trusts displacement, 2 position; a mean above this is mostly position


class Point(NamedTuple):
    """The mean of some measurements: one number, or one for each layer."""

    time: float
    values: list[float]
    n: float  # how many


def runs_with_diagnostics(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the runs with diagnostics by label."""
    return by_label([r for r in results if r.diagnostics])


def names(runs: Sequence[Result]) -> list[str]:
    """Return the names of all series of the runs, in order, without those that have their own plot."""
    every = dict.fromkeys(name for r in runs for name in _part(r, "series"))
    return [n for n in every if n not in _APART and any(points(r, n) for r in runs)]


def points(run: Result, name: str) -> list[Point]:
    """Return a series of one run; only points with as many values as the first."""
    found = []
    for time, value, count in _part(run, "series").get(name) or ():
        values = [_number(v) for v in (value if isinstance(value, list) else [value])]
        there = [v for v in values if v is not None]
        if there and len(there) == len(values) and (_number(count) or 0) > 0 and _number(time) is not None:
            found.append(Point(time, there, count))
    return [p for p in found if len(p.values) == len(found[0].values)]


def mean_of(run: Result, name: str) -> list[float]:
    """Return the mean over the whole run, [] without measurements."""
    found = points(run, name)
    if not found:
        return []
    mean: list[float] = np.average([p.values for p in found], axis=0, weights=[p.n for p in found]).tolist()
    return mean


def stretch(results: Sequence[Result]) -> float:
    """Return the length of a bin in virtual time: the shortest with enough updates; 0 for one bin."""
    each = [(_number((r.diagnostics or {}).get("every")) or 0.0, r) for r in results if r.virtual_time > 0]
    timed = [(every, r) for every, r in each if every > 0]
    if not timed:
        return 0.0
    every = max(e for e, _ in timed)
    pieces = max(r.virtual_time for _, r in timed) / every
    updates = min(r.updates / r.virtual_time for _, r in timed) * every
    return every * max(1, min(ceil(_ENOUGH / updates) if updates else pieces, int(pieces / _LEAST)))


def over_time(runs: Sequence[Result], name: str, width: float) -> Curve:
    """Return the mean over runs of means over bins, from where all runs have values."""
    lines = [line for r in runs if len(line := _stretches(points(r, name), width))]
    if not lines:
        return Curve([], [], None)
    xs = np.unique(np.concatenate([line[:, 0] for line in lines]))
    xs = xs[xs >= max(line[0, 0] for line in lines)]
    return spread([np.interp(xs, line[:, 0], line[:, 1]).tolist() for line in lines], xs.tolist())


def _stretches(found: Sequence[Point], width: float) -> Any:
    """Return (middle, mean) of each bin with measurements; several values count by their mean."""
    sums: dict[int, list[float]] = {}
    for p in found:
        total = sums.setdefault(int(p.time / width) if width else 0, [0.0, 0.0])
        total[0] += p.n * fmean(p.values)
        total[1] += p.n
    return np.array([((k + 0.5) * width, s / n) for k, (s, n) in sorted(sums.items())])


def spread(rows: Sequence[Sequence[float]], x: Sequence[float] | None = None) -> Curve:
    """Return mean and standard deviation over the rows of the first one's length; x is 1, 2, ... if it is not given."""
    if not rows:
        return Curve([], [], None)
    there = np.array([row for row in rows if len(row) == len(rows[0])], dtype=np.float64)
    sd = there.std(axis=0, ddof=1).tolist() if len(there) > 1 else None
    return Curve(list(x or range(1, there.shape[1] + 1)), there.mean(axis=0).tolist(), sd)


def participation(run: Result) -> list[float]:
    """Return the share of each client in the accepted updates, the fastest first; clients without any are last."""
    came, seconds = _numbers(run, "participation"), _numbers(run, "seconds")
    total = sum(came.values())
    if total <= 0:
        return []
    order = sorted(dict.fromkeys([*seconds, *came]), key=lambda c: seconds.get(c, np.inf))
    shares = [came.get(c, 0.0) / total for c in order]
    return shares + [0.0] * (run.n_clients - len(shares))


def validation(run: Result) -> dict[str, Curve]:
    """Return by client the accuracy of the weights that it got, over the updates of the server."""
    found = {}
    for client, rows in _part(run, "validation").items():
        pairs = [(x, y) for x, y, _ in rows or () if _number(x) is not None and _number(y) is not None]
        if pairs:
            found[str(client)] = Curve([x for x, _ in pairs], [y for _, y in pairs], None)
    return found


def visit_time(run: Result, client: str) -> float | None:
    """Return the mean duration of a client's visits, or None."""
    return _numbers(run, "seconds").get(client)


def speed_grid(results: Sequence[Result]) -> tuple[tuple[str, ...], list[tuple[TableCell, ...]]] | None:
    """Return a table of accuracy on the examples of fast and slow clients; None if no run has it."""
    headings = (
        "method",
        f"{results[0].scored_on} accuracy %",
        "active clients' examples %",
        "stragglers' examples %",
        "variance",
    )
    ways: list[Callable[[dict[str, Any]], Any]] = [
        lambda by: by.get("accuracy"),
        lambda by: (by.get("active") or {}).get("accuracy"),
        lambda by: (by.get("stragglers") or {}).get("accuracy"),
        lambda by: by.get("variance"),
    ]
    table: dict[str, list[float | None]] = {}
    for label, runs in runs_with_diagnostics(results).items():
        found = [by for r in runs if (by := (r.diagnostics or {}).get("by_speed"))]
        if found:
            table[label] = [_mean([_number(way(by)) for by in found]) for way in ways]
    if not any(v is not None for row in table.values() for v in row):
        return None
    best = [_best([row[i] for row in table.values()], max if i < 3 else min) for i in range(4)]
    return headings, [
        (TableCell(label), *(_cell(v, best[i], share=i < 3) for i, v in enumerate(row))) for label, row in table.items()
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return fmean(there) if len(there) == len(values) else None


def _best(column: Sequence[float | None], of: Callable[[list[float]], float]) -> float | None:
    there = [v for v in column if v is not None]
    return of(there) if len(there) > 1 else None


def _cell(value: float | None, best: float | None, *, share: bool) -> TableCell:
    if value is None:
        return TableCell(NONE)
    return TableCell(f"{100 * value:.1f}" if share else f"{value:.3g}", best=value == best)


def in_short(run: Result) -> list[str]:
    """Return the diagnostics of a run in at most three lines, for the terminal."""
    cosine, opposed = _mean_over([run], "cosine"), _mean_over([run], "opposed")
    sentences = (
        [] if cosine is None else [f"mean cosine of an update with the concurrent change of the model {cosine:.3f}"]
    )
    if sentences and opposed is not None:
        sentences[0] += f", {percent(opposed)} of updates oppose it"
    if ends := {n: fmean(points(run, n)[-1].values) for n in names([run]) if n not in ("drift", "past_globals")}:
        sentences.append("at the end " + ", ".join(f"{name} {value:.4g}" for name, value in ends.items()))
    if (grid := speed_grid([run])) is not None and grid[1][0][-1].text != NONE:
        _, test, active, stragglers, variance = (cell.text for cell in grid[1][0])
        on = f"{test} % on the test set, {active} % on active clients' examples, {stragglers} % on stragglers'"
        sentences.append(f"accuracy {on}; variance {variance}")
    return sentences


def sentences(results: Sequence[Result]) -> list[str]:
    """Return the main results of the diagnostics as sentences."""
    groups = runs_with_diagnostics(results)
    aligned = [text for label, runs in groups.items() if (text := _alignment(label, runs))]
    what = "Mean cosine of an update with the concurrent change of the model (and the share of updates that oppose it)"
    sentences = [f"{what}: {', '.join(aligned)}."] if aligned else []
    for label, runs in groups.items():
        sentences += [_quality(label, runs), _switch(label, runs)]
    if silent := [label for label in by_label(results) if label not in groups]:
        sentences.append(f"No diagnostics of {', '.join(silent)}: run with --diagnose to have them.")
    return [s for s in sentences if s]


def _alignment(label: str, runs: Sequence[Result]) -> str:
    cosine, opposed = _mean_over(runs, "cosine"), _mean_over(runs, "opposed")
    share = "" if opposed is None else f" ({percent(opposed)})"
    return "" if cosine is None else f"{label} {_format_signed(cosine)}{share}"


def _quality(label: str, runs: Sequence[Result]) -> str:
    """Return a sentence on AsyncCurve's Q = E[loss on the line] / E[loss on the curve], or ""."""
    line, curve = _mean_over(runs, "line_loss"), _mean_over(runs, "curve_loss")
    if line is None or not curve or curve <= 0:
        return ""
    better = "the curve was the better way" if line > curve else "the straight line was no worse"
    return f"{label}: Q = loss on the line / loss on the curve = {line / curve:.4f}; {better}."


def _switch(label: str, runs: Sequence[Result]) -> str:
    """Return a sentence on when OrthoDyn switched to trusting position, or ""."""
    found = [[(p.time, fmean(p.values) > _POSITION) for p in ps] for r in runs if (ps := points(r, "phase"))]
    if not found:
        return ""
    times = [t for run in found if (t := next((t for t, there in run if there), None)) is not None]
    if not times:
        return f"{label} did not switch: it trusted displacement to the end."
    some = "" if len(times) == len(found) else f" in {len(times)} of {len(found)} runs"
    mean = " (mean over seeds)" if len(times) > 1 else ""
    back = "" if all(run[-1][1] for run in found if any(there for _, there in run)) else ", and later back"
    return f"{label} switched from displacement to position{some} after about {duration(fmean(times))}{mean}{back}."


def _mean_over(runs: Sequence[Result], name: str) -> float | None:
    """Return the mean over runs of their means, or None."""
    means = [fmean(m) for r in runs if (m := mean_of(r, name))]
    return fmean(means) if means else None


def _format_signed(x: float) -> str:
    return f"{x:.3f}".replace("-", "−")


def _part(run: Result, key: str) -> dict[str, Any]:
    return (run.diagnostics or {}).get(key) or {}


def _numbers(run: Result, key: str) -> dict[str, float]:
    return {str(c): x for c, v in _part(run, key).items() if (x := _number(v)) is not None}


def _number(x: Any) -> float | None:
    return finite_or_none(x) if isinstance(x, int | float) else None
