"""Tables of a measure over rows and columns: our numbers, the paper's and the difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .experiment import Axis, Experiment, changes
from .measures import TO_TARGET, Measure, Stat, StoredRun, by_seed, marks, measure_of, stat
from .store import EARLIER, Store, shown

__all__ = [
    "NONE",
    "Findings",
    "TableGrid",
    "format_seeds",
    "difference",
    "findings",
    "ours",
    "plain_table",
    "run_warnings",
]

NONE = "–"
_FEW = 3  # runs up to which each is named


@dataclass(frozen=True)
class TableGrid:
    """The values of one measure: row → column → seed → number."""

    name: str
    measure: Measure
    values: Mapping[str, Mapping[str, Mapping[int, float | None]]]

    def stat(self, row: str, column: str) -> Stat | None:
        there = self.values.get(row, {}).get(column)
        return stat(there) if there else None

    def mean(self, row: str, column: str) -> float | None:
        found = self.stat(row, column)
        return None if found is None else found.mean

    def best(self, column: str) -> float | None:
        """Return the best mean of a column; None if the measure has no better side or there is only one row."""
        means = [m for row in self.values if (m := self.mean(row, column)) is not None]
        if self.measure.better == "none" or len(means) < 2:
            return None
        return max(means) if self.measure.better == "high" else min(means)


@dataclass(frozen=True)
class Findings:
    """The results of an experiment: a grid for each measure, runs with curves, and the size of each column."""

    experiment: Experiment
    rows: Mapping[str, str]  # titles
    columns: Mapping[str, str]
    grids: Mapping[str, TableGrid]
    runs: Mapping[str, Mapping[str, Mapping[int, StoredRun]]]  # column → row → seed
    sizes: Mapping[str, tuple[str, str]]  # column → size, text on what is smaller
    study: Mapping[str, object] | None = None
    made: tuple[Mapping[str, str], ...] = ()

    @property
    def there(self) -> bool:
        return any(columns for grid in self.grids.values() for columns in grid.values.values())

    def heading(self, column: str) -> str:
        """Return the title of a column, with its size if that is not the full one and the number of seeds."""
        size, seeds = self.sizes.get(column, ("full", ""))[0], max(self.seeds(column), default=0)
        about = ["earlier settings" if size == EARLIER else size] * (size != "full") + [format_seeds(seeds)] * (
            seeds > 0
        )
        return self.columns[column] + (f" ({', '.join(about)})" if about else "")

    @property
    def current(self) -> list[str]:
        """The columns whose runs have the experiment's present settings."""
        return [c for c in self.columns if self.sizes.get(c, ("full", ""))[0] != EARLIER]

    def marks(self, row: str, column: str) -> str:
        """Return the marks of a cell: † ended at chance level, ↓ collapsed."""
        return marks(self.runs.get(column, {}).get(row, {}).values())

    def seeds(self, column: str) -> list[int]:
        """Return the number of seeds of each row in a column."""
        rows = self.grids[self.experiment.measures[0]].values.values()
        return [n for columns in rows if (n := len(columns.get(column, ())))]

    def paper(self, measure: str, row: str, column: str) -> float | None:
        return self.experiment.paper.get(measure, {}).get(row, {}).get(column)

    def paper_sd(self, measure: str, row: str, column: str) -> float | None:
        return self.experiment.paper_sd.get(measure, {}).get(row, {}).get(column)


def format_seeds(seeds: int) -> str:
    return f"{seeds} seed{'s' * (seeds > 1)}"


def findings(experiment: Experiment, store: Store, *, quick: bool = False) -> Findings:
    """Return the findings in a store, which is that of the experiment whose runs are shown."""
    if experiment.study is not None:
        return _of_study(experiment, store, quick=quick)
    found = shown(experiment, store, quick=quick)
    grids = {}
    judged = ["tail"] if "accuracy" in experiment.measures else []
    judged += [c.measure for c in experiment.claims]
    for name in dict.fromkeys([*experiment.measures, *judged]):
        values: dict[str, dict[str, Mapping[int, float | None]]] = {row: {} for row in experiment.rows}
        for column, (size, _, runs) in found.items():
            for row, numbers in by_seed(experiment, name, runs, size, column).items():
                values[row][column] = numbers
        grids[name] = TableGrid(name, measure_of(experiment, name), values)
    entries = [e for _, _, runs in found.values() for seeds in runs.values() for e in seeds.values()]
    return Findings(
        experiment,
        _titles(experiment.rows, experiment.rows),
        _titles(experiment.columns, experiment.columns),
        grids,
        {column: runs for column, (_, _, runs) in found.items()},
        {column: (size, changed) for column, (size, changed, _) in found.items()},
        made=_distinct(e.made for e in entries),
    )


def _of_study(experiment: Experiment, store: Store, *, quick: bool) -> Findings:
    sizes = ("quick",) if quick else ("full", "reduced")
    size, result = next(((s, r) for s in sizes if (r := store.study(experiment, s)) is not None), ("full", None))
    changed = changes(experiment.study_options("full"), experiment.study_options(size))
    if result is None and not quick and (before := store.earlier_study()) is not None:
        size, result = EARLIER, before[1]
        changed = changes(experiment.study_options("full"), before[0]) if before[0] else "other options"
    numbers = {} if result is None else result.get("numbers", {})
    names = experiment.measures
    rows = dict.fromkeys([*experiment.rows, *numbers])
    columns = dict.fromkeys([*experiment.columns, *(c for cells in numbers.values() for c in cells)])
    grids = {}
    for name in names:
        values = {
            row: {
                column: {int(seed): _part(value, name, first=name == names[0]) for seed, value in seeds.items()}
                for column, seeds in numbers.get(row, {}).items()
            }
            for row in rows
        }
        grids[name] = TableGrid(name, measure_of(experiment, name), values)
    made = () if result is None else (result["made"],)
    return Findings(
        experiment,
        _titles(rows, experiment.rows),
        _titles(columns, experiment.columns),
        grids,
        {},
        dict.fromkeys(columns, (size, changed)),
        result,
        made,
    )


def _titles(names: Iterable[str], sides: Mapping[str, Axis]) -> dict[str, str]:
    return {name: sides[name].title if name in sides else name for name in names}


def _part(value: object, name: str, *, first: bool) -> float | None:
    found = value.get(name) if isinstance(value, Mapping) else value if first else None
    return None if found is None else float(found)  # type: ignore[arg-type]


def _distinct(all_made: Iterable[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
    """Return the different machines and versions, without the commands."""
    out: list[dict[str, str]] = []
    for made in all_made:
        if (short := {k: v for k, v in made.items() if k != "command"}) not in out:
            out.append(short)
    return tuple(out)


def ours(grid: TableGrid, row: str, column: str) -> str:
    """Return 92.2 ± 1.1, or how many seeds reach the target if some do not."""
    found = grid.stat(row, column)
    if found is None:
        return NONE
    if found.mean is None:
        if grid.name not in TO_TARGET:  # older runs did not store this number
            return NONE
        return "not reached" if found.there == 0 else f"{found.there} of {found.seeds} reach it"
    return grid.measure.text(found.mean, None if found.sd == 0 and grid.name == "time" else found.sd)


def difference(grid: TableGrid, row: str, column: str, printed: float | None) -> str:
    """Return our number minus the paper's as text."""
    mean = grid.mean(row, column)
    if mean is None or printed is None:
        return ""
    far = mean - printed if grid.measure.scientific else round(mean - printed, grid.measure.digits)
    return f"{'+' if far >= 0 else '−'}{grid.measure.text(abs(far))}"


def plain_table(found: Findings, name: str) -> list[str]:
    """Return lines for a terminal: our numbers, in brackets the paper's and the difference."""
    grid = found.grids[name]
    columns = [c for c in found.columns if any(c in there for there in grid.values.values())]
    rows = [[f"{grid.measure.heading}", *(found.heading(c) for c in columns)]]
    for row, title in found.rows.items():
        if not any(grid.stat(row, c) for c in columns):
            continue
        cells = []
        for column in columns:
            printed = found.paper(name, row, column)
            far = difference(grid, row, column, printed)
            paper = "" if printed is None else f" ({grid.measure.text(printed)}{f', {far}' if far else ''})"
            cells.append(ours(grid, row, column) + found.marks(row, column) + paper)
        rows.append([title, *cells])
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(r, widths, strict=True)).rstrip() for r in rows]


def run_warnings(found: Findings) -> list[str]:
    """Return the warnings of the runs, such as that one diverged; a warning of many runs is one line."""
    who: dict[str, list[str]] = {}
    for column, rows in found.runs.items():
        for row, seeds in rows.items():
            for seed, entry in sorted(seeds.items()):
                run = f"{found.rows.get(row, row)}, {found.columns.get(column, column)}, seed {seed}"
                for warning in entry.warnings:
                    if not warning.startswith("--"):  # such a warning is on a parameter without effect
                        who.setdefault(warning, []).append(run)
    return [f"{run}: {r}" for r, runs in who.items() for run in (runs if len(runs) <= _FEW else [f"{len(runs)} runs"])]
