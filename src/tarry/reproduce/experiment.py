"""An experiment as its TOML says it: a grid of runs, or a study, with what the paper printed and what it claims.

    settings < column < row < cell, then what each of them changes at the size that is run, in the same order

Every cell comes out as settings of `tarry run`, so that anybody can run it alone. The format is in `reading`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.components import REGISTRIES, Choice
from ..config.spec import Spec
from ..core.errors import BadInput
from ..runs.run import CHANGE_NO_RESULT

__all__ = [
    "Cell",
    "Claim",
    "Experiment",
    "Figure",
    "SizedSettings",
    "Axis",
    "Target",
    "changes",
    "fingerprint",
    "merged",
]

#: beside what changes no result: where and how it is computed is in the record, not in what is asked for
_ASIDE = (*CHANGE_NO_RESULT, "device", "compile", "strict", "seed")
_PROBE_DEVICE = "cpu"


@dataclass(frozen=True)
class SizedSettings:
    """Settings, and what a smaller size changes in them."""

    full: Mapping[str, Any] = field(default_factory=dict)
    reduced: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    def at(self, size: str) -> Mapping[str, Any]:
        """What this size changes; nothing at the paper's own."""
        return {"reduced": self.reduced, "quick": self.quick}.get(size, {})


@dataclass(frozen=True)
class Axis:
    """A row or a column: its name in tables, its place in a sweep's figure, and its settings."""

    title: str
    layer: SizedSettings = field(default_factory=SizedSettings)
    at: float | None = None
    panel: str = ""


@dataclass(frozen=True)
class Figure:
    """How results are drawn."""

    kind: str  # curves | bars | sweep
    over: str = "time"  # curves: time | updates
    of: str = "accuracy"  # curves: accuracy | loss
    along: str = "columns"  # sweep: what lies along the axis
    measure: str = ""  # bars and sweeps: the first of the measures
    log: bool = False
    x: str = ""  # the axis's name; over time it is then in virtual seconds, whatever they stand for


@dataclass(frozen=True)
class Target:
    """What `time` and the measures that end in _to wait for; by default a share of the lowest final accuracy."""

    share: float = 0.95
    accuracy: float | None = None  # in per cent
    loss: float | None = None
    row: str | None = None  # a share of this row's accuracy in place of the lowest


@dataclass(frozen=True)
class Claim:
    """What the paper says, in a form that our numbers can be held against."""

    say: str
    check: str
    measure: str
    rows: tuple[str, ...]  # those the claim is about
    than: tuple[str, ...] = ()  # those they are compared with
    columns: tuple[str, ...] = ()
    along: str = "columns"
    by: float = 0.0
    slack: float = 0.0
    value: float | None = None
    beyond: str | None = None  # a measure: the margin that counts


@dataclass(frozen=True)
class Cell:
    """One entry of the grid at one size; `changed` says in words what is smaller than in the paper."""

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
        """What `tarry run` is given."""
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
        """The experiment whose results these are."""
        return self.uses or self.name

    def grid(self) -> Iterator[tuple[str, str]]:
        """(row, column) of every cell, column by column."""
        return ((r, c) for c in self.columns for r in self.rows if (r, c) not in self.skipped)

    def cell(self, row: str, column: str, size: str) -> Cell:
        """A cell at a size; where the size changes nothing, it is the paper's own."""
        layers = [self.settings, self.columns[column].layer, self.rows[row].layer]
        layers += [self.cells[row, column]] if (row, column) in self.cells else []
        full = merged(*(layer.full for layer in layers))
        settings = merged(full, *(layer.at(size) for layer in layers))
        if fingerprint(settings) == fingerprint(full):
            return Cell(row, column, "full", settings)
        return Cell(row, column, size, settings, changes(full, settings))

    def target_at(self, size: str) -> Target:
        return self.targets.get(size, self.target)

    def study_options(self, size: str) -> dict[str, Any]:
        return merged(self.options.full, self.options.at(size))

    def problems(self, size: str, cells: Sequence[tuple[str, str]] | None = None) -> list[str]:
        """What `tarry run` would refuse, each problem once, with the cells that have it; no data is looked at."""
        whose: dict[str, list[str]] = {}
        for row, column in self.grid() if cells is None else cells:
            try:
                self.cell(row, column, size).spec(0, device=_PROBE_DEVICE)
            except BadInput as e:
                for problem in e.problems:
                    whose.setdefault(problem, []).append(f"{row}/{column}")
        return [
            f"{self.path}: {problem} (in {', '.join(keys[:3])}{' and others' if len(keys) > 3 else ''})"
            for problem, keys in whose.items()
        ]


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win. A table without a name changes parameters of the choice that is there already."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            there = out.get(key)
            if isinstance(value, Mapping) and "name" not in value and key in REGISTRIES and there is not None:
                value = {**_table(there), **value}
            elif isinstance(value, Mapping) and isinstance(there, Mapping) and key not in REGISTRIES:
                value = merged(there, value)
            out[key] = value
    return out


def _table(choice: Any) -> dict[str, Any]:
    made = Choice.of(choice)
    return {"name": made.name, **made.params}


def fingerprint(settings: Mapping[str, Any]) -> str:
    """The same for settings that ask for the same; what changes no result is left out."""
    plain = {k: v for k, v in settings.items() if k not in _ASIDE}
    for key in plain.keys() & REGISTRIES.keys():
        if isinstance(plain[key], str) or (isinstance(plain[key], Mapping) and "name" in plain[key]):
            plain[key] = _table(plain[key])
    text = json.dumps(_numbers(plain), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _numbers(x: Any) -> Any:
    """1 and 1.0 say the same."""
    if isinstance(x, Mapping):
        return {str(k): _numbers(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_numbers(v) for v in x]
    return float(x) if isinstance(x, int) and not isinstance(x, bool) else x


def changes(full: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What differs, in words: '125 of 500 rounds, task.limit 6000'."""
    said = []
    for name, value in _flat(settings).items():
        before = _flat(full).get(name)
        if value == before or name in _ASIDE:
            continue
        if _is_number(value) and _is_number(before) and name in ("rounds", "updates", "clients", "epochs", "steps"):
            said.append(f"{value:,} of {before:,} {name}")
        elif _is_number(value) and _is_number(before) and name == "time":
            said.append(f"{value:,} of {before:,} virtual seconds")
        elif before is None or value == "none":
            said.append(f"{name} {value}")
        else:
            said.append(f"{name} {value} for {before}")
    return ", ".join(said)


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
