"""Commands that make the stored results again: with their size, seeds, precision, and columns and rows if not all."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from .tables import Findings

__all__ = ["commands"]


@dataclass(frozen=True)
class _How:
    """Options that all runs of one command share."""

    size: str
    seeds: tuple[int, ...]
    precision: str


def commands(found: Findings) -> list[str]:
    """Return commands that together make the stored runs; without any, the command that makes all."""
    e = found.experiment
    name = f"tarry reproduce {e.name}"
    if not found.there or not any(c in found.sizes for c in found.current):
        return [name]
    if found.study is not None:
        seeds = {seed for grid in found.grids.values() for c in grid.values.values() for v in c.values() for seed in v}
        return [name + _flags(_How(_size(found, next(iter(found.sizes))), tuple(sorted(seeds)), ""))]
    by_how: dict[_How, dict[str, list[str]]] = {}
    for how, row, column in _cells(found):
        by_how.setdefault(how, {}).setdefault(column, []).append(row)
    lines = []
    for how, by_column in by_how.items():
        same: dict[tuple[str, ...], list[str]] = {}
        for column, rows in by_column.items():
            whole = set(rows) == {r for r, c in e.grid() if c == column}
            same.setdefault(() if whole else tuple(rows), []).append(column)
        for some, columns in same.items():
            only = "" if set(columns) == set(e.columns) else f" --only {shlex.quote(','.join(columns))}"
            only += f" --rows {shlex.quote(','.join(some))}" if some else ""
            lines.append(name + only + _flags(how))
    return lines


def _cells(found: Findings) -> Iterator[tuple[_How, str, str]]:
    """Yield (options, row, column) of all runs; a cell whose seeds had two precisions comes twice."""
    for column in [c for c in found.runs if c in found.current]:
        rows = found.runs[column]
        for row, seeds in rows.items():
            by_precision: dict[str, list[int]] = {}
            for seed, entry in sorted(seeds.items()):
                by_precision.setdefault(_precision(entry.made), []).append(seed)
            for precision, mine in by_precision.items():
                yield _How(_size(found, column), tuple(mine), precision), row, column


def _size(found: Findings, column: str) -> str:
    """Return the size of a column; "quick" for all columns if any has it."""
    return "quick" if any(size == "quick" for size, _ in found.sizes.values()) else found.sizes[column][0]


def _precision(made: Mapping[str, str]) -> str:
    """Return the --precision of the command that made a run, or ""."""
    words = shlex.split(made.get("command", ""))
    for word, after in pairwise([*words, ""]):
        if word == "--precision":
            return after
        if word.startswith("--precision="):
            return word.partition("=")[2]
    return ""


def _flags(how: _How) -> str:
    many = len(how.seeds)
    seeds = str(many) if how.seeds == tuple(range(many)) else ",".join(map(str, how.seeds))
    seeds = f"{seeds}-{seeds}" if many == 1 and how.seeds != (0,) else seeds
    precision = f" --precision {how.precision}" if how.precision else ""
    return f" --size {how.size} --seeds {seeds}{precision}"
