"""`--list`: every experiment with its data sets, runs and cost, and with the results that exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import BadInput
from ..tasks.data.sets import catalog as data_sets
from . import catalog
from .experiment import Experiment
from .store import shown
from .tables import findings, format_seeds

__all__ = ["any_results", "lines"]


def lines(*, results: Path | None = None) -> list[str]:
    """Return two lines for each experiment, or the problems of a file that cannot be read."""
    out = []
    for name in catalog.names():
        try:
            experiment = catalog.find(name)
        except BadInput as e:
            out += [name, *(f"    {p}" for p in e.problems)]
            continue
        out += [
            f"{name}  {experiment.where}: {experiment.title}",
            f"    {_needs(experiment)}; {_in(experiment, results)}",
        ]
    return out


def _needs(experiment: Experiment) -> str:
    """Return the number of runs, the data sets and the GPU hours."""
    if experiment.uses is not None:
        return f"shows the runs of {experiment.uses}"
    hours = sum(experiment.gpu_hours.values())
    cost = f", about {hours:.2g} GPU hours" if hours else ""
    if experiment.study is not None:
        sets = _sets([experiment.study_options("full")])
        return f"a study ({experiment.study}){f' on {sets}' if sets else ''}{cost}"
    cells = [experiment.cell(row, column, "full").settings for row, column in experiment.grid()]
    return f"{len(cells) * experiment.seeds} runs on {_sets(cells) or 'digits'}{cost}"


def _sets(tables: Iterable[Any]) -> str:
    """Return the data sets named in the settings; missing ones are marked."""
    known = data_sets()
    names = [n for n in dict.fromkeys(n for table in tables for n in _texts(table)) if n in known]
    return ", ".join(n if known[n].find() is not None else f"{n} (not here)" for n in names)


def _texts(value: Any) -> Iterator[str]:
    for v in value.values() if isinstance(value, Mapping) else [value]:
        if isinstance(v, Mapping):
            yield from _texts(v)
        elif isinstance(v, str):
            yield v


def _in(experiment: Experiment, results: Path | None) -> str:
    """Return which results exist, at which sizes and with how many seeds; quick ones are only mentioned."""
    quick = any_results(experiment, quick=True, results=results)
    return _describe_count(experiment, results) + ("; quick ones: --show --quick" if quick else "")


def any_results(experiment: Experiment, *, quick: bool, results: Path | None) -> bool:
    """Return whether results exist, of quick runs or of the other sizes."""
    return findings(experiment, catalog.results(experiment.runs_of, quick=quick, folder=results), quick=quick).there


def _describe_count(experiment: Experiment, results: Path | None) -> str:
    store = catalog.results(experiment.runs_of, folder=results)
    if experiment.study is not None:
        sizes = {size for size in ("full", "reduced") if store.study(experiment, size) is not None}
        return f"results are in{_at(sizes)}" if sizes else "no results yet"
    columns = shown(experiment, store).values()
    seeds = [len(found) for _, _, runs in columns for found in runs.values()]
    if not seeds:
        return "no results yet"
    wanted = sum(1 for _ in experiment.grid())
    cells = "all" if len(seeds) == wanted else f"{len(seeds)} of {wanted}"
    few, many = min(seeds), max(seeds)
    how_many = format_seeds(many) if few == many else f"{few} to {format_seeds(many)}"
    return f"results: {cells} cells, {how_many}{_at({size for size, _, _ in columns})}"


def _at(sizes: set[str]) -> str:
    return "" if sizes <= {"full"} else f", {' and '.join(sorted(sizes))} size"
