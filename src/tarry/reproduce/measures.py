"""Measures: the numbers and the thinned curve that are stored of every run, and the columns computed from them.

    accuracy, tail, best    final; mean of the last tenth of the virtual time; highest (per cent)
    swing                   mean absolute change of the accuracy between evaluations in the last half of the time
    time, speedup           time to the target over the baseline's, seed by seed, and its inverse
    time_to, updates_to, rounds_to, bytes_to        what it took until the target, whatever others took; bytes_to is up,
    bytes_down_to, bytes_total_to                   down, and both
    variance_test, variance ½ (|a₁ − a|² + |a₂ − a|²) of Fed-OGD, with a₁ and a₂ on test examples with the groups' mix
                            of classes, or on their training examples; a run needs `diagnose = true` for them

The target is, per column and seed, 95 % of the lowest final accuracy among the rows (OrthoFL, 5.1), of those for which
this lies above what needs no learning, over the seeds that all rows of the column have; [target] asks for another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from ..record.result import Result

if TYPE_CHECKING:
    from .experiment import Experiment, Target

__all__ = [
    "MEASURES",
    "TO_TARGET",
    "StoredRun",
    "Measure",
    "Stat",
    "by_seed",
    "marks",
    "measure_of",
    "stat",
    "tail_evaluations",
    "to_entry",
]


@dataclass(frozen=True)
class Measure:
    """Title, unit and digits of a measure, and whether high or low is better."""

    title: str
    unit: str = ""
    digits: int = 1
    better: str = "high"  # high | low | none
    scientific: bool = False

    def text(self, value: float, sd: float | None = None) -> str:
        """92.2 ± 1.1"""
        tiny = self.scientific or 0 < abs(value) < 0.5 * 10**-self.digits
        texts = [f"{v:.2e}" if tiny and v else f"{v:,.{self.digits}f}" for v in (value, sd) if v is not None]
        return " ± ".join(texts) + (self.unit if self.unit == "×" else "")

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit not in ("", "×") else self.title


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure("accuracy", "%"),
    "tail": Measure("accuracy, mean of the last tenth", "%"),
    "best": Measure("best accuracy", "%"),
    "swing": Measure("mean change between evaluations, last half", "points", better="low"),
    "loss": Measure("loss", digits=3, better="low"),
    "personal": Measure("personal accuracy", "%"),
    "personal_spread": Measure("spread over clients of the personal accuracy", "points", better="none"),
    "personal_before": Measure("personal accuracy before tuning", "%"),
    "active": Measure("accuracy on active clients' examples", "%"),
    "stragglers": Measure("accuracy on stragglers' examples", "%"),
    "active_test": Measure("accuracy on test examples with active clients' mix", "%"),
    "stragglers_test": Measure("accuracy on test examples with stragglers' mix", "%"),
    "variance_test": Measure("accuracy variance, on test examples", digits=2, better="low", scientific=True),
    "variance": Measure("accuracy variance, a₁ and a₂ on training examples", digits=2, better="low", scientific=True),
    "time": Measure("time to target", "×", digits=2, better="low"),
    "speedup": Measure("speed-up to target", "×"),
    "time_to": Measure("time to target", "virtual s", digits=0, better="low"),
    "updates_to": Measure("updates to target", digits=0, better="low"),
    "rounds_to": Measure("server steps to target", digits=0, better="low"),
    "bytes_to": Measure("sent up to target", "MB", better="low"),
    "bytes_down_to": Measure("sent down to target", "MB", better="low"),
    "bytes_total_to": Measure("sent both ways to target", "MB", better="low"),
    "staleness": Measure("staleness", better="none"),
    "updates": Measure("updates", digits=0, better="none"),
    "rounds": Measure("server steps", digits=0, better="none"),
    "bytes": Measure("sent up", "MB", better="low"),
    "bytes_down": Measure("sent down", "MB", better="low"),
    "bytes_total": Measure("sent both ways", "MB", better="low"),
    "wall": Measure("computing time", "s", better="none"),
}
TO_TARGET = ("time", "speedup", "time_to", "updates_to", "rounds_to", "bytes_to", "bytes_down_to", "bytes_total_to")
_AT_CHANCE = 0.5  # points above the majority class within which a run has learned nothing
_FALLEN = 20.0  # points below its best accuracy at which a run has collapsed
_TAIL = 0.9  # share of the virtual time after which the tail begins


def measure_of(experiment: Experiment, name: str) -> Measure:
    """Return the measure that the experiment declares, or the built-in one."""
    own = experiment.own_measures.get(name)
    if own is None:
        return MEASURES[name]
    return Measure(
        own.get("title", name), own.get("unit", ""), own.get("digits", 2), own.get("better", "high"), scientific=False
    )


@dataclass(frozen=True)
class StoredRun:
    """A stored run; `curve` holds columns of equal length: time, updates, accuracy (per cent), loss."""

    numbers: Mapping[str, float | None]
    curve: Mapping[str, Sequence[float | None]]
    weights_sha256: str
    made: Mapping[str, str]  # version, commit, torch, device, date, command
    warnings: tuple[str, ...] = ()
    executor_info: str = ""  # how clients were trained, if they could be trained together


def to_entry(result: Result, points: int, made: Mapping[str, str]) -> StoredRun:
    """Return the numbers and the curve of a result."""
    accuracies = [(p.time, 100 * p.accuracy) for p in result.curve if p.accuracy is not None and isfinite(p.accuracy)]
    last = [a for t, a in accuracies if t >= _TAIL * result.virtual_time] or [a for _, a in accuracies[-1:]]
    personal, speed = result.personalization or {}, (result.diagnostics or {}).get("by_speed") or {}
    numbers: dict[str, float | None] = {
        "accuracy": _times(100, result.final_accuracy),
        "loss": _real(result.final_loss),
        "tail": fmean(last) if last else None,
        "swing": _swing([a for t, a in accuracies if t >= result.virtual_time / 2]),
        "best": max((a for _, a in accuracies), default=None),
        "majority_accuracy": _times(100, result.majority_accuracy),
        "updates": result.updates,
        "rounds": result.rounds,
        "virtual_time": result.virtual_time,
        "staleness": result.staleness.mean,
        "bytes": result.bytes_up / 1e6,
        "bytes_down": result.bytes_down / 1e6,
        "bytes_total": (result.bytes_up + result.bytes_down) / 1e6,
        "evaluations": len(accuracies),
        "tail_evaluations": len(last),
        "wall": result.wall_s,
    }
    if personal:
        numbers["personal"] = _times(100, personal["after"]["mean"])
        numbers["personal_spread"] = _times(100, personal["after"]["sd"])
        numbers["personal_before"] = _times(100, personal["before"]["mean"])
    if speed:
        numbers["variance"] = _real(speed["variance"])
        numbers["variance_test"] = _real(speed.get("variance_test"))  # a folder of an earlier version lacks it
        numbers |= {g: _times(100, speed[g]["accuracy"]) for g in ("active", "stragglers")}
        numbers |= {f"{g}_test": _times(100, speed[g].get("test_accuracy")) for g in ("active", "stragglers")}
    short = {k: None if v is None else _short(v, 6) for k, v in numbers.items()}
    curve = _thin(result, points)
    return StoredRun(short, curve, result.weights_sha256, made, tuple(result.warnings), result.executor_info)


def tail_evaluations(entry: StoredRun) -> int:
    """Return the number of evaluations in the last tenth of a run, from its thinned curve if that is all there is."""
    if (known := entry.numbers.get("tail_evaluations")) is not None:
        return int(known)
    end = entry.numbers.get("virtual_time") or 0.0
    return sum(t is not None and t >= _TAIL * end for t in entry.curve.get("time", ()))


def marks(entries: Collection[StoredRun]) -> str:
    """Return † if a run ended at the accuracy of the majority class, ↓ if one lost 20 points since its best."""
    chance = fallen = False
    for entry in entries:
        last, n = entry.numbers.get("tail"), entry.numbers
        last = n.get("accuracy") if last is None else last
        diverged = any("diverged" in w or "not finite" in w for w in entry.warnings)
        if last is None:
            chance |= diverged
            continue
        chance |= diverged or last <= (n.get("majority_accuracy") or 0.0) + _AT_CHANCE
        fallen |= (n.get("best") or last) - last >= _FALLEN
    return "†" * chance + "↓" * (fallen and not chance)


def _swing(accuracies: Sequence[float]) -> float | None:
    return fmean(abs(b - a) for a, b in pairwise(accuracies)) if len(accuracies) > 1 else None


def _thin(result: Result, points: int) -> dict[str, list[float | None]]:
    """Return at most `points` points at even distances, with the first and the last."""
    n = len(result.curve)
    chosen = range(n) if n <= points else sorted({round(i * (n - 1) / (points - 1)) for i in range(points)})
    thinned = [result.curve[i] for i in chosen]
    return {
        "time": [_short(p.time, 6) for p in thinned],
        "updates": [p.updates for p in thinned],
        "accuracy": [None if (a := _times(100, p.accuracy)) is None else round(a, 3) for p in thinned],
        "loss": [None if (x := _real(p.loss)) is None else _short(x, 4) for p in thinned],
    }


def _real(x: float | None) -> float | None:
    return x if x is not None and isfinite(x) else None


def _times(factor: float, x: float | None) -> float | None:
    real = _real(x)
    return None if real is None else factor * real


def _short(x: float, digits: int) -> float:
    """Return the number rounded to significant digits, an integer if it is whole."""
    y = float(f"{x:.{digits}g}")
    return int(y) if y == int(y) and abs(y) < 1e15 else y


def by_seed(
    experiment: Experiment,
    name: str,
    column: Mapping[str, Mapping[int, StoredRun]],
    size: str = "full",
    column_name: str = "",
) -> dict[str, dict[int, float | None]]:
    """Return row → seed → the measure, None where it has no value (a target that was not reached)."""
    if name not in TO_TARGET:
        return {row: {seed: e.numbers.get(name) for seed, e in runs.items()} for row, runs in column.items()}
    target = experiment.target_at(size, column_name)
    of_each = [runs.keys() for runs in column.values()]
    relative = name in ("time", "speedup") or (target.accuracy is None and target.loss is None)
    seeds = sorted(set[int]().union(*of_each) if not relative else set[int](of_each[0]).intersection(*of_each))
    out: dict[str, dict[int, float | None]] = {row: {} for row in column}
    for seed in seeds:
        runs = {row: entries[seed] for row, entries in column.items() if seed in entries}
        aim = _aim(target, runs)
        what = "time" if name in ("time", "speedup") else name[:-3]
        took = {row: _until(aim, e, what) for row, e in runs.items()}
        if name == "time":
            base = took.get(experiment.baseline or "")
            took = {row: t / base if t is not None and base else None for row, t in took.items()}
        elif name == "speedup":
            base = took.get(experiment.baseline or "")
            took = {row: base / t if base is not None and t else None for row, t in took.items()}
        for row, value in took.items():
            out[row][seed] = value
    return out


def _aim(target: Target, runs: Mapping[str, StoredRun]) -> tuple[str, float] | None:
    """Return the target as ("accuracy", minimum) or ("loss", maximum), or None."""
    if target.accuracy is not None or target.loss is not None:
        return ("accuracy", target.accuracy) if target.accuracy is not None else ("loss", target.loss or 0.0)
    compared = runs if target.row is None else {target.row: runs[target.row]} if target.row in runs else {}
    trivial_accuracy = max((e.numbers.get("majority_accuracy") or 0.0 for e in runs.values()), default=0.0)
    aims = [target.share * a for e in compared.values() if (a := e.numbers.get("accuracy")) is not None]
    return min((("accuracy", a) for a in aims if a > trivial_accuracy), default=None)


def _until(aim: tuple[str, float] | None, entry: StoredRun, what: str) -> float | None:
    """Return the time, updates or bytes until the first evaluation that meets the target, or None."""
    if aim is None:
        return None
    kind, wanted = aim
    sign = 1.0 if kind == "accuracy" else -1.0
    at = next((i for i, v in enumerate(entry.curve[kind]) if v is not None and sign * (v - wanted) >= 0), None)
    if at is None:
        return None
    if what == "time":
        return entry.curve["time"][at]
    updates, whole = entry.curve["updates"][at], entry.numbers.get("updates")
    if what == "updates" or updates is None:
        return updates
    total = entry.numbers.get(what)  # proportional to the updates, which are all of one size
    return None if total is None else total * updates / whole if whole else 0.0


@dataclass(frozen=True)
class Stat:
    """Statistics over seeds. `mean` is None if a seed has no number, `sd` if there is only one seed."""

    mean: float | None
    sd: float | None
    seeds: int
    there: int


def stat(values: Mapping[int, float | None]) -> Stat:
    there = [v for v in values.values() if v is not None]
    whole = len(there) == len(values) > 0
    return Stat(
        fmean(there) if whole else None, stdev(there) if whole and len(there) > 1 else None, len(values), len(there)
    )
