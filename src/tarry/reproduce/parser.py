"""Parser of experiments/<paper>/<table>.toml: all problems of a file are one error with the file and the keys.

title, where, words     title, name in the paper, what the paper claims with it
deviations              differences of our setting from the paper's
measures                measures of a cell, the main one first (see `measures`; others in [measure.NAME])
seeds, points           number of seeds; number of points that are stored of a curve
baseline, hero, test    the row that times are relative to; the rows tested against all others
figure                  "curves", "bars", "sweep", or a table with the fields of `experiment.Figure`
[target]                target of `time`: share, accuracy (one, or a table by column), loss, row; also [target.quick],
                        [target.reduced]
[settings]              settings of all runs, as for `tarry run`; [settings.quick] and [settings.reduced] change them
[rows.R] [columns.C]    the same for a row or a column, with title, at, panel
[cells.R.C]             the same for one cell; skip = true if the paper has none
tuned                   by column: a file of `tarry tune`, whose settings its rows get (see `tuned_cells`)
[paper.MEASURE.R]       the paper's numbers by column; [paper.sd.MEASURE.R] their ±
[[claims]]              say, check, and what is compared (see `claims`)
gpu_hours               by column: hours of all rows and seeds on one GPU, roughly
uses                    another table of the paper whose runs are shown
study, [study_options]  a module of `studies`, if it is not a grid of runs
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..config.spec import settings as spec_settings
from ..core.errors import BadInput, near
from ..core.storage import read_toml
from .experiment import Axis, Claim, Experiment, Figure, SizedSettings, Target
from .measures import MEASURES
from .tuned_cells import with_tuned_cells

__all__ = ["CHECKS", "read"]

CHECKS = ("best", "above", "below", "near", "rises", "falls", "lead", "steadier")
_NAME = re.compile(r"[A-Za-z0-9._+-]+")
_TEXTS = ("title", "where", "words", "baseline", "test", "study", "uses")
_TABLES = ("settings", "rows", "columns", "cells", "paper", "target", "measure", "gpu_hours", "study_options", "tuned")
_KEYS = (*_TEXTS, *_TABLES, "deviations", "measures", "seeds", "points", "hero", "figure", "claims")
_SIZES = ("quick", "reduced")
_SIDE = ("title", "at", "panel", *_SIZES)
_FIGURE = {
    "kind": ("curves", "bars", "sweep"),
    "over": ("time", "updates"),
    "of": ("accuracy", "loss"),
    "along": ("columns", "rows"),
}
_CLAIM = (
    *("say", "check", "measure", "row", "rows", "than", "column", "columns", "along"),
    *("by", "slack", "value", "beyond", "relative", "mean"),
)
_MEASURE = {"title": str, "unit": str, "digits": int, "better": str}
_MOST_POINTS = 400
_OF_THE_COMMAND = {"seed": "--seeds", "device": "--device", "workers": "--workers"}


def read(path: Path, name: str) -> Experiment:
    """Return the experiment of a file; raise BadInput with all problems."""
    reader = _Reader(path, name, read_toml(path, str(path)))
    made, wrong_files = with_tuned_cells(reader.experiment(), reader.raw.get("tuned", {}))
    reader.problems += wrong_files
    if reader.problems:
        raise BadInput([f"{path}: {problem}" for problem in reader.problems])
    return made


class _Reader:
    """Reads one file and collects problems; wrong values are left out of the experiment."""

    def __init__(self, path: Path, name: str, raw: dict[str, Any]):
        self.path, self.name, self.raw, self.problems = path, name, raw, list[str]()
        self._settings = spec_settings()

    def experiment(self) -> Experiment:
        raw, base = self.raw, self._base()
        self._known("", raw, _KEYS)
        for key in _TABLES:
            if not isinstance(raw.get(key, {}), dict):
                self.problems.append(f"{key}: wants a table")
                raw.pop(key)
        rows, columns = self._sides("rows"), self._sides("columns")
        if base is not None:
            rows, columns = dict(base.rows), dict(base.columns)
        own = self._own_measures()
        measures = self._measures(own)
        study = raw.get("study")
        if study is None and not (rows and columns):
            self.problems.append("rows, columns: it needs at least one of each, or a study")
        cells, skipped = self._cells(rows, columns)
        open_names = study is not None and not (rows and columns)  # a study may name its rows
        sides = None if open_names else (rows, columns)
        paper = {k: v for k, v in raw.get("paper", {}).items() if k != "sd"}
        return Experiment(
            name=self.name,
            path=self.path,
            title=self._text("title", needed=True),
            where=self._text("where", needed=True),
            words=" ".join(self._text("words", needed=True).split()),
            deviations=self._list("deviations"),
            measures=measures,
            seeds=self._whole("seeds", 3, 1, 1000),
            rows=rows,
            columns=columns,
            settings=base.settings if base else self._layer("settings", raw.get("settings", {}), _SIZES),
            cells=base.cells if base else cells,
            skipped=base.skipped if base else skipped,
            baseline=self._row("baseline", rows),
            test=self._one_of("test", self._text("test"), ("wilcoxon",)) or None,
            heroes=self._heroes(rows),
            figure=self._figure(measures),
            target=self._target("target", self.raw.get("target", {}), rows, columns),
            targets={
                size: self._target(f"target.{size}", table, rows, columns)
                for size in _SIZES
                if isinstance(table := self.raw.get("target", {}).get(size), dict)
            },
            own_measures=own,
            gpu_hours=self._gpu_hours(columns, study is not None),
            paper=self._paper("paper", paper, measures, sides),
            paper_sd=self._paper("paper.sd", raw.get("paper", {}).get("sd", {}), measures, sides),
            claims=self._claims(measures, sides),
            points=base.points if base else self._whole("points", 60, 2, _MOST_POINTS),
            uses=None if base is None else base.runs_of,
            study=study if isinstance(study, str) else None,
            options=self._options(),
        )

    def _base(self) -> Experiment | None:
        """Return the experiment whose runs this one shows, or None."""
        uses = self.raw.get("uses")
        if not isinstance(uses, str):
            return None
        path = self.path.with_name(f"{uses}.toml")
        if not path.is_file() or path == self.path:
            self.problems.append(f"uses {uses!r}: there is no {path.name} beside it")
            return None
        for key in ("settings", "rows", "columns", "cells", "study", "study_options", "tuned"):
            if key in self.raw:
                self.problems.append(f"{key}: it comes from {uses!r}, which it uses; leave one of the two out")
        return read(path, f"{self.name.rpartition('/')[0]}/{uses}")

    # Simple values

    def _known(self, where: str, table: Mapping[str, Any], known: Collection[str]) -> None:
        for key in table:
            if key not in known:
                self.problems.append(f"{where}{key}: there is no such key.{near(key, known)}")

    def _text(self, key: str, *, needed: bool = False) -> str:
        value = self.raw.get(key, "")
        if not isinstance(value, str) or (needed and not value.strip()):
            self.problems.append(f"{key}: wants text")
            return ""
        return value.strip()

    def _list(self, key: str) -> tuple[str, ...]:
        value = self.raw.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.problems.append(f"{key}: wants a list of texts")
            return ()
        return tuple(value)

    def _whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self.raw.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.problems.append(f"{key} {value!r}: wants a whole number from {low} to {high}")
            return default
        return value

    def _one_of(self, where: str, value: str, known: Collection[str]) -> str:
        if value and value not in known:
            self.problems.append(f"{where} {value!r}: it is not known.{near(value, known)}")
        return value

    def _heroes(self, rows: Mapping[str, Axis]) -> tuple[str, ...]:
        heroes = self._names("hero", self.raw, "hero", rows)
        if self.raw.get("test") and not heroes:
            self.problems.append("hero: say which row is tested against the others")
        return heroes

    def _row(self, key: str, rows: Mapping[str, Axis]) -> str | None:
        value = self._text(key)
        if value and rows and value not in rows:
            self.problems.append(f"{key} {value!r}: there is no such row.{near(value, rows)}")
        return value or None

    def _number(self, where: str, value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.problems.append(f"{where} {value!r}: wants a number")
            return None
        return float(value)

    # Settings

    def _layer(self, where: str, table: Any, besides: Collection[str]) -> SizedSettings:
        """Settings with what smaller sizes change; keys in `besides` are read elsewhere."""
        if not isinstance(table, dict):
            self.problems.append(f"{where}: wants a table")
            return SizedSettings()
        sizes = {size: table.get(size, {}) for size in _SIZES}
        plain = {k: v for k, v in table.items() if k not in besides}
        for place, part in ((where, plain), *((f"{where}.{s}", t) for s, t in sizes.items())):
            if not isinstance(part, dict):
                self.problems.append(f"{place}: wants a table")
                return SizedSettings()
            for key in part:
                if key in _OF_THE_COMMAND:
                    self.problems.append(f"{place}.{key}: leave it out; the command says it ({_OF_THE_COMMAND[key]})")
                elif key not in self._settings:
                    self.problems.append(f"{place}.{key}: there is no such setting.{near(key, self._settings)}")
        return SizedSettings(plain, **sizes)

    def _sides(self, which: str) -> dict[str, Axis]:
        out = {}
        for name, table in self.raw.get(which, {}).items():
            where = f"{which}.{name}"
            if not _NAME.fullmatch(name):
                self.problems.append(f"{where}: a name has letters, digits and . _ + - alone")
            if not isinstance(table, dict):
                self.problems.append(f"{where}: wants a table")
                continue
            title, at, panel = table.get("title", name), table.get("at"), table.get("panel", "")
            if not isinstance(title, str) or not isinstance(panel, str):
                self.problems.append(f"{where}.title, {where}.panel: want text")
            place = None if at is None else self._number(f"{where}.at", at)
            out[name] = Axis(str(title), self._layer(where, table, _SIDE), place, str(panel))
        return out

    def _cells(
        self, rows: Collection[str], columns: Collection[str]
    ) -> tuple[dict[tuple[str, str], SizedSettings], frozenset[tuple[str, str]]]:
        cells, skipped = {}, set()
        for row, table in self.raw.get("cells", {}).items():
            self._exists(f"cells.{row}", row, rows)
            for column, layer in (table if isinstance(table, dict) else {}).items():
                where = f"cells.{row}.{column}"
                self._exists(where, column, columns)
                cells[row, column] = self._layer(where, layer, ("skip", *_SIZES))
                if isinstance(layer, dict) and layer.get("skip") is True:
                    skipped.add((row, column))
        return cells, frozenset(skipped)

    def _exists(self, where: str, name: str, known: Collection[str]) -> bool:
        if name not in known:
            self.problems.append(f"{where}: there is no {name!r}.{near(name, known)}")
        return name in known

    def _options(self) -> SizedSettings:
        table = self.raw.get("study_options", {})
        sizes = {size: table.get(size, {}) for size in _SIZES}
        return SizedSettings({k: v for k, v in table.items() if k not in _SIZES}, **sizes)

    # What is shown

    def _own_measures(self) -> dict[str, dict[str, Any]]:
        out: dict[str, dict[str, Any]] = {}
        for name, table in self.raw.get("measure", {}).items():
            where = f"measure.{name}"
            self._known(f"{where}.", table, _MEASURE)
            for key, kind in _MEASURE.items():
                if key in table and not isinstance(table[key], kind):
                    self.problems.append(f"{where}.{key} {table[key]!r}: wants {kind.__name__}")
            self._one_of(f"{where}.better", table.get("better", "high"), ("high", "low", "none"))
            out[name] = dict(table)
        return out

    def _measures(self, own: Mapping[str, Any]) -> tuple[str, ...]:
        names = self._list("measures")
        if not names:
            self.problems.append("measures: name at least one")
        for name in names:
            self._one_of("measures", name, [*MEASURES, *own])
        needs_base = [m for m in names if m == "time" and m not in own and not self.raw.get("baseline")]
        if needs_base:
            self.problems.append("measures 'time': it is relative to a row; name it as baseline")
        return names or ("accuracy",)

    def _figure(self, measures: tuple[str, ...]) -> Figure | None:
        given = self.raw.get("figure", "none")
        table = {"kind": given} if isinstance(given, str) else given
        if table == {"kind": "none"}:
            return None
        if not isinstance(table, dict) or "kind" not in table:
            self.problems.append(f"figure {given!r}: wants a kind")
            return None
        self._known("figure.", table, (*_FIGURE, "measure", "log", "x"))
        for key, known in _FIGURE.items():
            self._one_of(f"figure.{key}", str(table.get(key, known[0])), known)
        measure = str(table.get("measure", measures[0]))
        self._one_of("figure.measure", measure, measures)
        if not isinstance(table.get("x", ""), str):
            self.problems.append(f"figure.x {table['x']!r}: wants text")
        texts = {k: str(table[k]) for k in ("over", "of", "along", "x") if k in table}
        return Figure(str(table["kind"]), **texts, measure=measure, log=table.get("log") is True)

    def _target(
        self, where: str, table: Mapping[str, Any], rows: Mapping[str, Axis], columns: Mapping[str, Axis]
    ) -> Target:
        sizes = _SIZES if where == "target" else ()
        self._known(f"{where}.", table, ("share", "accuracy", "loss", "row", *sizes))
        by_column = table["accuracy"] if isinstance(table.get("accuracy"), dict) else {}
        for column in by_column:
            self._exists(f"{where}.accuracy.{column}", column, columns)
        by_column = {c: self._number(f"{where}.accuracy.{c}", x) or 0.0 for c, x in by_column.items()}
        table = {k: v for k, v in table.items() if not (k == "accuracy" and by_column)}
        numbers = {k: self._number(f"{where}.{k}", table[k]) for k in ("share", "accuracy", "loss") if k in table}
        row = table.get("row")
        if row is not None:
            self._exists(f"{where}.row", row, rows)
        return Target(
            share=numbers.get("share") or 0.95,
            accuracy=numbers.get("accuracy"),
            loss=numbers.get("loss"),
            row=row,
            by_column=by_column,
        )

    def _gpu_hours(self, columns: Collection[str], any_name: bool) -> dict[str, float]:
        out = {}
        for column, hours in self.raw.get("gpu_hours", {}).items():
            if not any_name:
                self._exists(f"gpu_hours.{column}", column, columns)
            out[column] = self._number(f"gpu_hours.{column}", hours) or 0.0
        return out

    def _paper(
        self, where: str, tables: Any, measures: Collection[str], sides: tuple[Collection[str], Collection[str]] | None
    ) -> dict[str, dict[str, dict[str, float]]]:
        out: dict[str, dict[str, dict[str, float]]] = {}
        for measure, rows in tables.items():
            self._exists(f"{where}.{measure}", measure, measures)
            for row, numbers in rows.items():
                place = f"{where}.{measure}.{row}"
                if not isinstance(numbers, dict):
                    self.problems.append(f"{place}: wants a table of numbers by column")
                    continue
                if sides is not None:
                    self._exists(place, row, sides[0])
                for column, value in numbers.items():
                    if sides is not None:
                        self._exists(f"{place}.{column}", column, sides[1])
                    number = self._number(f"{place}.{column}", value)
                    out.setdefault(measure, {}).setdefault(row, {})[column] = number or 0.0
        return out

    # Claims

    def _claims(
        self, measures: tuple[str, ...], sides: tuple[Mapping[str, Axis], Mapping[str, Axis]] | None
    ) -> tuple[Claim, ...]:
        given = self.raw.get("claims", [])
        if not isinstance(given, list):
            self.problems.append("claims: wants [[claims]]")
            return ()
        made = [self._claim(f"claims[{i}]", table, measures, sides) for i, table in enumerate(given)]
        return tuple(c for c in made if c is not None)

    def _claim(
        self,
        where: str,
        table: Any,
        measures: tuple[str, ...],
        sides: tuple[Mapping[str, Axis], Mapping[str, Axis]] | None,
    ) -> Claim | None:
        if not isinstance(table, dict) or not isinstance(table.get("say"), str) or table.get("check") not in CHECKS:
            self.problems.append(f"{where}: wants say and check ({', '.join(CHECKS)})")
            return None
        self._known(f"{where}.", table, _CLAIM)
        check, measure = table["check"], str(table.get("measure", measures[0]))
        self._one_of(f"{where}.measure", measure, measures if self.raw.get("study") else [*measures, *MEASURES])
        rows = self._names(f"{where}.rows", table, "row", sides and sides[0])
        columns = self._names(f"{where}.columns", table, "column", sides and sides[1])
        than = self._names(f"{where}.than", {"rows": table.get("than", [])}, "row", sides and sides[0])
        numbers = {k: self._number(f"{where}.{k}", table[k]) for k in ("by", "slack", "value") if k in table}
        along = self._one_of(f"{where}.along", str(table.get("along", "columns")), ("columns", "rows"))
        value = numbers.get("value")
        if not rows:
            self.problems.append(f"{where}: say which row (row, rows) it is about")
        if check in ("above", "below", "near", "lead", "steadier") and not than and value is None:
            self.problems.append(f"{where}: {check} wants `than` (rows) or `value`")
        by, slack = numbers.get("by") or 0.0, numbers.get("slack") or 0.0
        beyond = self._one_of(f"{where}.beyond", str(table["beyond"]), measures) if "beyond" in table else None
        if beyond is not None and (value is None or check == "near"):
            self.problems.append(f"{where}: beyond wants above or below, and `value`")
        relative, mean = table.get("relative") is True, table.get("mean") is True
        if mean and check not in ("above", "below"):
            self.problems.append(f"{where}: mean wants above or below")
        return Claim(table["say"], check, measure, rows, than, columns, along, by, slack, value, beyond, relative, mean)

    def _names(self, where: str, table: Mapping[str, Any], key: str, known: Collection[str] | None) -> tuple[str, ...]:
        given = table.get(key, table.get(f"{key}s", []))
        names = tuple([given] if isinstance(given, str) else given)
        for name in names:
            if known is not None:
                self._exists(where, name, known)
        return names
