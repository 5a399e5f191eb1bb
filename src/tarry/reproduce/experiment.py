"""Experiment: a grid of runs or a study as declared in TOML, with the numbers that the paper prints and its claims.

    settings < column < row < cell, then the changes of each of them for the size that is run, in the same order

Every cell is a set of settings of `tarry run`, so that it can be run alone. The format is described in `parser`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..config.components import REGISTRIES, Choice
from ..config.spec import Spec
from ..core.errors import BadInput
from ..record.digests import EXECUTION_SETTINGS

__all__ = [
    "Axis",
    "Cell",
    "Claim",
    "Experiment",
    "Figure",
    "SizedSettings",
    "Target",
    "changes",
    "fingerprint",
    "merge_layers",
]

#: settings that are not part of a fingerprint: they change no result, or the record names them
_NOT_IN_FINGERPRINT = (*EXECUTION_SETTINGS, "device", "compile", "strict", "seed")
_PROBE_DEVICE = "cpu"


@dataclass(frozen=True)
class SizedSettings:
    """Settings of the full size, and the changes that smaller sizes make to them."""

    full: Mapping[str, Any] = field(default_factory=dict)
    reduced: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    def at(self, size: str) -> Mapping[str, Any]:
        """Return the changes of a size; none for the full one."""
        return {"reduced": self.reduced, "quick": self.quick}.get(size, {})


@dataclass(frozen=True)
class Axis:
    """A row or a column of a table: its title, its place in the figure of a sweep, and its settings."""

    title: str
    settings: SizedSettings = field(default_factory=SizedSettings)
    at: float | None = None
    panel: str = ""


@dataclass(frozen=True)
class Figure:
    """Declaration of a plot of the results."""

    kind: str  # curves | bars | sweep
    over: str = "time"  # curves: time | updates
    of: str = "accuracy"  # curves: accuracy | loss
    along: str = "columns"  # sweep: columns or rows along the x axis
    measure: str = ""  # bars and sweeps; by default the first of the measures
    log: bool = False
    x: str = ""  # label of the x axis; a time is then in virtual seconds


@dataclass(frozen=True)
class Target:
    """The target of `time` and of measures that end in _to; by default a share of the lowest final accuracy."""

    share: float = 0.95
    accuracy: float | None = None  # in per cent
    loss: float | None = None
    row: str | None = None  # take a share of the accuracy of this row instead of the lowest
    by_column: Mapping[str, float] = field(default_factory=dict)  # accuracies in per cent


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, in a form that can be checked against our numbers."""

    say: str
    check: str
    measure: str
    rows: tuple[str, ...]  # rows that the claim is about
    than: tuple[str, ...] = ()  # rows that they are compared with
    columns: tuple[str, ...] = ()
    along: str = "columns"
    by: float = 0.0
    slack: float = 0.0
    value: float | None = None
    beyond: str | None = None  # a measure: the margin by which the claim must hold
    relative: bool = False  # `by` is per cent of the other side
    mean: bool = False  # means over the columns are compared


@dataclass(frozen=True)
class Cell:
    """One entry of the grid at one size; `changed` describes what is smaller than in the paper."""

    row: str
    column: str
    size: str
    settings: Mapping[str, Any]
    changed: str = ""

    @property
    def key(self) -> str:
        return f"{self.row}/{self.column}"

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.settings)

    def spec(self, seed: int, **machine: Any) -> Spec:
        """Return the spec of a run of this cell."""
        return Spec.of({**self.settings, "seed": seed, **machine})


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of a paper."""

    name: str  # paper/table
    path: Path
    title: str
    where: str
    words: str
    deviations: tuple[str, ...]
    measures: tuple[str, ...]
    seeds: int
    rows: Mapping[str, Axis]
    columns: Mapping[str, Axis]
    settings: SizedSettings = field(default_factory=SizedSettings)
    cells: Mapping[tuple[str, str], SizedSettings] = field(default_factory=dict)
    skipped: frozenset[tuple[str, str]] = frozenset()
    baseline: str | None = None
    test: str | None = None
    heroes: tuple[str, ...] = ()
    figure: Figure | None = None
    target: Target = field(default_factory=Target)
    targets: Mapping[str, Target] = field(default_factory=dict)  # of sizes that have their own
    own_measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gpu_hours: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)  # measure, row, column
    paper_sd: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    points: int = 60
    uses: str | None = None  # another table of the paper whose runs are shown
    study: str | None = None
    options: SizedSettings = field(default_factory=SizedSettings)

    @property
    def runs_of(self) -> str:
        """Return the name of the experiment whose results are shown."""
        return self.uses or self.name

    def grid(self) -> Iterator[tuple[str, str]]:
        """Yield (row, column) of every cell, column by column."""
        return ((r, c) for c in self.columns for r in self.rows if (r, c) not in self.skipped)

    def cell(self, row: str, column: str, size: str) -> Cell:
        """Return a cell at a size; if the size changes nothing, the size of the cell is "full"."""
        layers = [self.settings, self.columns[column].settings, self.rows[row].settings]
        layers += [self.cells[row, column]] if (row, column) in self.cells else []
        full = merge_layers(*(layer.full for layer in layers))
        settings = merge_layers(full, *(layer.at(size) for layer in layers))
        if fingerprint(settings) == fingerprint(full):
            return Cell(row, column, "full", settings)
        return Cell(row, column, size, settings, changes(full, settings))

    def target_at(self, size: str, column: str = "") -> Target:
        target = self.targets.get(size, self.target)
        return replace(target, accuracy=target.by_column.get(column, target.accuracy))

    def study_options(self, size: str) -> dict[str, Any]:
        return merge_layers(self.options.full, self.options.at(size))

    def problems(self, size: str, cells: Sequence[tuple[str, str]] | None = None) -> list[str]:
        """Return what `tarry run` would reject, each problem once with its cells; no data is read."""
        cells_of: dict[str, list[str]] = {}
        for row, column in self.grid() if cells is None else cells:
            try:
                self.cell(row, column, size).spec(0, device=_PROBE_DEVICE)
            except BadInput as e:
                for problem in e.problems:
                    cells_of.setdefault(problem, []).append(f"{row}/{column}")
        return [
            f"{self.path}: {problem} (in {', '.join(keys[:3])}{' and others' if len(keys) > 3 else ''})"
            for problem, keys in cells_of.items()
        ]


def merge_layers(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layers merged, later over earlier; a table without a name changes parameters of the earlier choice."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            there = out.get(key)
            if isinstance(value, Mapping) and "name" not in value and key in REGISTRIES and there is not None:
                value = {**_table(there), **value}
            elif isinstance(value, Mapping) and isinstance(there, Mapping) and key not in REGISTRIES:
                value = merge_layers(there, value)
            out[key] = value
    return out


def _table(choice: Any) -> dict[str, Any]:
    made = Choice.of(choice)
    return {"name": made.name, **made.params}


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return a hash that is equal for settings that mean the same; settings that change no result are left out."""
    plain = {k: v for k, v in settings.items() if k not in _NOT_IN_FINGERPRINT}
    for key in plain.keys() & REGISTRIES.keys():
        if isinstance(plain[key], str) or (isinstance(plain[key], Mapping) and "name" in plain[key]):
            plain[key] = _table(plain[key])
    text = json.dumps(_numbers(plain), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _numbers(x: Any) -> Any:
    """Return the value with integers as floats, so that 1 and 1.0 are equal."""
    if isinstance(x, Mapping):
        return {str(k): _numbers(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_numbers(v) for v in x]
    return float(x) if isinstance(x, int) and not isinstance(x, bool) else x


def changes(full: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the differences as text: '125 of 500 rounds, task.limit 6000, without partition.cap'."""
    changes, flat = [], _flat(full)
    for name, value in _flat(settings).items():
        before = flat.get(name)
        if value == before or name in _NOT_IN_FINGERPRINT:
            continue
        if _is_number(value) and _is_number(before) and name in ("rounds", "updates", "clients", "epochs", "steps"):
            changes.append(f"{value:,} of {before:,} {name}")
        elif _is_number(value) and _is_number(before) and name == "time":
            changes.append(f"{value:,} of {before:,} virtual seconds")
        elif before is None or value == "none":
            changes.append(f"{name} {value}")
        else:
            changes.append(f"{name} {value} for {before}")
    lacking = flat.keys() - _flat(settings).keys() - set(_NOT_IN_FINGERPRINT)
    return ", ".join([*changes, *(f"without {name}" for name in flat if name in lacking)])


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if key in REGISTRIES and (isinstance(value, str) or (isinstance(value, Mapping) and "name" in value)):
            choice = Choice.of(value)
            out |= {key: choice.name, **{f"{key}.{k}": v for k, v in choice.params.items()}}
        elif isinstance(value, Mapping) and key == "settings":
            out |= _flat(value)
        elif isinstance(value, Mapping):
            out |= {f"{key}.{k}": v for k, v in _flat(value).items()}
        else:
            out[key] = value
    return out


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
