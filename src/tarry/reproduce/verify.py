"""Verify stored results of reproduced tables: whether a file is what was written, and whether its runs repeat.

    for check in verify_results(Path("experiments/orthofl/results/table2.json"), rerun="proofs"):
        print(check.ok, check.text)

A run that is repeated gives the same weights to the bit on the processor, with the torch and by the executor it was
made with. Elsewhere its accuracy may differ by at most TOLERANCE percentage points.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from ..core.errors import BadInput, DamagedFile
from ..record.consistency import Check
from ..runs.run import run_spec
from ..tasks.data.sets import without_flags
from . import catalog
from .experiment import Cell, Experiment
from .measures import StoredRun, to_entry
from .store import EARLIER, Store
from .worker import processor

__all__ = ["TOLERANCE", "is_complete", "result_files", "verify_results"]

TOLERANCE = 2.0  # percentage points of accuracy, of a run that is repeated on another machine


def result_files(path: Path) -> list[Path]:
    """Return the results that a path stands for: a file, a folder of them, or the name of a table. Empty: none."""
    if path.is_file() and path.suffix == ".json" and path.parent.name == "results":
        return [path]
    if path.is_dir():
        found = sorted({*path.glob("results/*.json"), *path.glob("*/results/*.json")})
        return found or (sorted(path.glob("*.json")) if path.name == "results" else [])
    if path.is_absolute() or str(path) not in catalog.names():
        return []
    file = catalog.results(catalog.find(str(path)).runs_of).existing
    if file is None:
        raise BadInput(f"{path}: no results are stored yet; `tarry reproduce {path}` makes them")
    return [file]


def is_complete(path: Path) -> bool:
    """Return whether a file of results has every run of its table, or the result of its study."""
    experiment = _experiment_of(path)
    if experiment is None:
        return True
    store = Store(path, experiment.name)
    if experiment.study is not None:
        return any(store.study(experiment, size) is not None for size in ("full", "reduced", "quick"))
    runs = {(c.row, c.column): entries for c, _, entries in store.cells() if not c.size.startswith(EARLIER)}
    return all(len(runs.get(place, ())) >= experiment.seeds for place in experiment.grid())


def verify_results(path: Path, *, rerun: Literal["proofs", "all"] | None = None) -> Iterator[Check]:
    """Yield the checks of a file of results. `rerun`: repeat the shortest run (proofs) or all runs (all)."""
    try:
        store = Store(path, path.stem)
    except DamagedFile as e:
        yield Check("results", False, str(e))
        return
    if not store.is_as_written():
        yield Check("results", False, f"{path}: it is not what was written (its digest differs)")
        return
    cells = list(store.cells())
    settings = _check_settings(path, cells)
    yield settings
    if rerun is None or not settings.ok:
        return
    runs = [(cell, seed, entry) for cell, _, entries in cells for seed, entry in entries.items()]
    runs = [run for run in runs if not run[0].size.startswith(EARLIER)]
    if rerun == "proofs":
        runs = sorted(runs, key=lambda run: run[2].numbers.get("wall") or 0.0)[:1]
    for run in runs:
        yield _repeat(path, *run)


def _check_settings(path: Path, cells: list[tuple[Cell, str, dict[int, StoredRun]]]) -> Check:
    """Compare the settings of every cell with its fingerprint, and that with the experiment's."""
    experiment = _experiment_of(path)
    for cell, mark, _ in cells:
        what = f"{cell.key} ({cell.size})"
        if cell.fingerprint != mark:
            return Check("settings", False, f"{path}: the settings of {what} are not those of its fingerprint")
        if experiment is not None and not cell.size.startswith(EARLIER) and mark != _fingerprint_now(experiment, cell):
            why = f"the experiment has other settings for {what} now; `tarry reproduce {experiment.name}` runs it again"
            return Check("settings", False, f"{path}: {why}")
    count = sum(len(entries) for _, _, entries in cells)
    what = f"{count:,} runs, with the experiment's settings" if count else "the result of a study"
    return Check("settings", True, f"{path.name} is as written: {what}")


def _experiment_of(path: Path) -> Experiment | None:
    """Return the experiment whose results a file holds; None if it is not here."""
    name = f"{path.resolve().parent.parent.name}/{path.stem.removesuffix('-quick')}"
    return catalog.find(name) if name in catalog.names() else None


def _fingerprint_now(experiment: Experiment, cell: Cell) -> str:
    if (cell.row, cell.column) not in experiment.grid():
        return ""
    return experiment.cell(cell.row, cell.column, cell.size).fingerprint


def _repeat(path: Path, cell: Cell, seed: int, entry: StoredRun) -> Check:
    """Run one stored run again and compare weights, or accuracy if it was made elsewhere."""
    name = f"{cell.key} ({cell.size}), seed {seed}"
    with without_flags():
        again = to_entry(run_spec(cell.spec(seed)), 2, {})
    if again.weights_sha256 == entry.weights_sha256:
        return Check("rerun", True, f"{name} gives the same weights again")
    made = entry.made
    if (made["torch"], made["device"]) == (torch.__version__, processor()) and not entry.executor_info:
        return Check("rerun", False, f"{path}: {name} gives other weights")
    before, now = entry.numbers.get("accuracy"), again.numbers.get("accuracy")
    if before is None or now is None:
        return Check("rerun", False, f"{path}: {name} gives other weights, and has no accuracy to be compared")
    text = f"accuracy {now:.2f} % here, {before:.2f} % on {made['device']} with torch {made['torch']}"
    return Check("rerun", abs(before - now) <= TOLERANCE, f"{name}: {text}")
