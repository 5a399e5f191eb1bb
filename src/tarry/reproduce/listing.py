"""`--list`: every experiment with what it needs and what of it has been run."""

from __future__ import annotations

from pathlib import Path

from ..choice import Choice
from ..core.errors import BadInput
from . import shelf
from .plan import Experiment
from .store import shown

__all__ = ["lines"]


def lines(*, results: Path | None = None) -> list[str]:
    """Two lines an experiment; a file that cannot be read is listed with its problems."""
    out = []
    for name in shelf.names():
        try:
            experiment = shelf.find(name)
        except BadInput as e:
            out += [name, *(f"    {p}" for p in e.problems)]
            continue
        out += [
            f"{name}  {experiment.where}: {experiment.title}",
            f"    {_needs(experiment)}; {_in(experiment, results)}",
        ]
    return out


def _needs(experiment: Experiment) -> str:
    """Data sets, runs and hours."""
    if experiment.uses is not None:
        return f"shows the runs of {experiment.uses}"
    hours = sum(experiment.gpu_hours.values())
    cost = f", about {hours:.2g} GPU hours" if hours else ""
    if experiment.study is not None:
        return f"a study ({experiment.study}){cost}"
    tasks = {
        Choice.of(experiment.cell(row, column, "full").settings.get("task", "digits")).name: None
        for row, column in experiment.grid()
    }
    runs = sum(1 for _ in experiment.grid()) * experiment.seeds
    return f"{runs} runs on {', '.join(tasks)}{cost}"


def _in(experiment: Experiment, results: Path | None) -> str:
    """What has been run, at which sizes and with how many seeds; quick runs do not count."""
    store = shelf.results(experiment.runs_of, folder=results)
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
    how_many = f"{few} seed{'s' * (few > 1)}" if few == many else f"{few} to {many} seeds"
    return f"results: {cells} cells, {how_many}{_at({size for size, _, _ in columns})}"


def _at(sizes: set[str]) -> str:
    return "" if sizes <= {"full"} else f", {' and '.join(sorted(sizes))} size"
