"""Store of results: experiments/<paper>/results/<table>.json, and <table>-quick.json for quick runs.

    {"experiment": ..., "made": [{tarry, commit, torch, device, date, command}, ...],
     "cells": {"ROW/COLUMN": {SIZE: {"fingerprint": ..., "changed": ..., "settings": {...},
                                     "seeds": {"0": {"numbers": ..., "curve": ..., "weights": ..., "made": 0}}}}},
     "study": {SIZE: {"fingerprint": ..., "made": 0, "settings": {...}, "result": {...}}},
     "sha256": digest of all of the above}

Each run is one line. A run is added when it ends. When the experiment's settings have changed, the runs of the earlier
settings are kept: their SIZE becomes "earlier-" and the beginning of their fingerprint. They are shown, marked,
where there is nothing else, and no claim is judged on them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import DamagedFile
from ..record.shapes import read_record
from ..record.storage import write_atomic
from .experiment import Cell, Experiment, changes, fingerprint
from .measures import StoredRun
from .store_shape import STORE, misplaced

__all__ = ["EARLIER", "Column", "Store", "known_runs", "shown"]

EARLIER = "earlier"  # the size of results that were made with settings that the experiment no longer has
_SIZES = ("full", "reduced", "quick")

#: row → seed → stored run
Column = dict[str, dict[int, StoredRun]]


class Store:
    """The results of one experiment, or of its quick runs; read from `base` while `path` does not exist."""

    def __init__(self, path: Path, name: str, base: Path | None = None):
        self.path, self.name, self.base = path, name, base
        self._data = self._read()

    # Reading

    @property
    def existing(self) -> Path | None:
        """The file that the results are read from; None if there is none."""
        return next((p for p in (self.path, self.base) if p is not None and p.is_file()), None)

    def is_as_written(self) -> bool:
        """Return whether the content has the digest that it was written with."""
        return bool(self._data.get("sha256") == _digest(self._data))

    def cells(self) -> Iterator[tuple[Cell, str, dict[int, StoredRun]]]:
        """Yield every cell as it is stored, its stored fingerprint, and its runs by seed."""
        for key, sizes in self._data["cells"].items():
            row, _, column = key.partition("/")
            for size, there in sizes.items():
                cell = Cell(row, column, size, there.get("settings", {}), there.get("changed", ""))
                yield cell, there["fingerprint"], {int(s): self._entry(raw) for s, raw in there["seeds"].items()}

    def entries(self, cell: Cell) -> dict[int, StoredRun]:
        """Return the runs of a cell by seed; runs with other settings do not count."""
        there = self._data["cells"].get(cell.key, {}).get(cell.size)
        if there is None or there["fingerprint"] != cell.fingerprint:
            return {}
        return {int(seed): self._entry(raw) for seed, raw in there["seeds"].items()}

    def study(self, experiment: Experiment, size: str) -> dict[str, Any] | None:
        """Return the result of a study, or None."""
        there = self._data["study"].get(size)
        if there is None or there["fingerprint"] != fingerprint(experiment.study_options(size)):
            return None
        result: dict[str, Any] = there["result"]
        return {**result, "made": self._data["made"][there["made"]]}

    def earlier(self, row: str, column: str) -> tuple[Mapping[str, Any], dict[int, StoredRun]] | None:
        """Return the settings and runs of earlier settings of a cell, those of most rounds and seeds; None: none."""
        found = [
            (there["settings"], {int(s): self._entry(raw) for s, raw in there["seeds"].items()})
            for size, there in self._data["cells"].get(f"{row}/{column}", {}).items()
            if size.startswith(EARLIER)
        ]
        return max(
            found, key=lambda f: (max(e.numbers["updates"] or 0 for e in f[1].values()), len(f[1])), default=None
        )

    def earlier_study(self) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
        """Return the options and the result of a study with earlier options, the last one; None: none."""
        found = [there for size, there in self._data["study"].items() if size.startswith(EARLIER)]
        if not found:
            return None
        return found[-1].get("settings", {}), {**found[-1]["result"], "made": self._data["made"][found[-1]["made"]]}

    def made(self) -> list[Mapping[str, str]]:
        """Return the commands and machines that made the results."""
        return list(self._data["made"])

    def runs(self) -> Iterator[tuple[str, int, StoredRun]]:
        """Yield (fingerprint, seed, entry) of all runs."""
        for _, mark, entries in self.cells():
            for seed, entry in entries.items():
                yield mark, seed, entry

    def _entry(self, raw: Mapping[str, Any]) -> StoredRun:
        made = self._data["made"][raw["made"]]
        warnings, executor_info = tuple(raw.get("warnings", ())), raw.get("executor_info", "")
        return StoredRun(raw["numbers"], raw["curve"], raw["weights"], made, warnings, executor_info)

    # Writing

    def add(self, cell: Cell, seed: int, entry: StoredRun) -> None:
        """Add a run, or replace the run of the same cell and seed."""
        with self._locked_rewrite():
            sizes = self._data["cells"].setdefault(cell.key, {})
            there = sizes.get(cell.size)
            if there is None or there["fingerprint"] != cell.fingerprint:
                about = {"fingerprint": cell.fingerprint, "changed": cell.changed, "settings": dict(cell.settings)}
                there = sizes[cell.size] = {**about, "seeds": {}}
            raw = {"numbers": dict(entry.numbers), "curve": dict(entry.curve), "weights": entry.weights_sha256}
            raw |= {"made": self._made(entry.made)} | ({"warnings": list(entry.warnings)} if entry.warnings else {})
            raw |= {"executor_info": entry.executor_info} if entry.executor_info else {}
            there["seeds"][str(seed)] = raw

    def add_study(self, experiment: Experiment, size: str, result: Mapping[str, Any], made: Mapping[str, str]) -> None:
        """Add the result of a study; numbers of other seeds stay."""
        with self._locked_rewrite():
            mark = fingerprint(experiment.study_options(size))
            before = self._data["study"].get(size, {})
            numbers = dict(result.get("numbers", {}))
            if before.get("fingerprint") == mark:
                numbers = _merge(before["result"].get("numbers", {}), numbers)
            found = {**result, "numbers": numbers}
            about = {"fingerprint": mark, "made": self._made(made), "settings": experiment.study_options(size)}
            self._data["study"][size] = {**about, "result": found}

    def mark_earlier(self, experiment: Experiment) -> list[str]:
        """Mark the results whose settings the experiment no longer has; return a line for each cell."""
        wanted = {
            (cell.key, cell.size): cell.fingerprint
            for row, column in experiment.grid()
            for size in _SIZES
            for cell in [experiment.cell(row, column, size)]
        }
        messages = []
        for key, size in self._stale_cells(wanted):
            why = "its settings have changed" if (key, size) in wanted else "its cell was removed"
            messages.append(f"{self.name}, {key} ({size}): {why}; its results are kept as earlier ones")
        stale_studies = self._stale_studies(experiment)
        messages += [
            f"{self.name} ({s}): its options have changed; its result is kept as an earlier one" for s in stale_studies
        ]
        if messages:
            with self._locked_rewrite():
                for key, size in self._stale_cells(wanted):
                    _rename_earlier(self._data["cells"][key], size)
                for size in self._stale_studies(experiment):
                    _rename_earlier(self._data["study"], size)
        return messages

    def _stale_cells(self, wanted: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
        return [
            (key, size)
            for key, sizes in self._data["cells"].items()
            for size, there in sizes.items()
            if size in _SIZES and wanted.get((key, size)) != there["fingerprint"]
        ]

    def _stale_studies(self, experiment: Experiment) -> list[str]:
        return [
            size
            for size, there in self._data["study"].items()
            if size in _SIZES and there["fingerprint"] != fingerprint(experiment.study_options(size))
        ]

    def _made(self, made: Mapping[str, str]) -> int:
        """Return the index of a command and machine in the list `made`."""
        if made not in self._data["made"]:
            self._data["made"].append(dict(made))
        place: int = self._data["made"].index(made)
        return place

    # The file

    @contextmanager
    def _locked_rewrite(self) -> Iterator[None]:
        """Hold the lock of the folder, read the file again, and write it at the end."""
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._data = self._read()
            yield
            self._tidy()
            self._data["sha256"] = _digest(self._data)
            write_atomic(self.path, _text(self._data).encode())
        finally:
            os.close(lock)

    def _tidy(self) -> None:
        """Remove empty cells, and commands that no result refers to."""
        data = self._data
        data["cells"] = {
            k: tables for k, s in data["cells"].items() if (tables := {n: t for n, t in s.items() if t["seeds"]})
        }
        users = [raw for s in data["cells"].values() for there in s.values() for raw in there["seeds"].values()]
        users += data["study"].values()
        needed = sorted({raw["made"] for raw in users})
        for raw in users:
            raw["made"] = needed.index(raw["made"])
        data["made"] = [data["made"][i] for i in needed]

    def _read(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"experiment": self.name, "made": [], "cells": {}, "study": {}}
        path = self.existing
        if path is None:
            return empty
        try:
            data = {**empty, **read_record(path, STORE)}
            if wrong := misplaced(data):
                raise DamagedFile(f"{path} cannot be read: {wrong}")
            return data
        except DamagedFile as e:
            raise DamagedFile(f"{e}; delete it to start again") from e


def _rename_earlier(sizes: dict[str, Any], size: str) -> None:
    there = sizes.pop(size)
    sizes[f"{EARLIER}-{there['fingerprint'][:8]}"] = there


def _digest(data: Mapping[str, Any]) -> str:
    """Return a digest of the results, whatever the order of keys."""
    content = {k: v for k, v in data.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _merge(a: Any, b: Any) -> Any:
    """Return nested tables merged, the second over the first."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return {k: _merge(a[k], b[k]) if k in a and k in b else a.get(k, b.get(k)) for k in {**a, **b}}
    return b


def _text(data: Mapping[str, Any], depth: int = 0) -> str:
    """Return JSON with one line for each run, so that a changed run changes one line."""
    if not isinstance(data, Mapping) or "numbers" in data or "curve" in data or not data or "device" in data:
        return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    pad = " " * (depth + 1)
    parts = []
    for key, value in data.items():
        if isinstance(value, list) and key == "made":
            text = "[\n" + ",\n".join(f"{pad} {_text(v)}" for v in value) + f"\n{pad}]" if value else "[]"
        elif key == "settings":
            text = json.dumps(value, ensure_ascii=False)
        else:
            text = _text(value, depth + 1)
        parts.append(f"{pad}{json.dumps(key, ensure_ascii=False)}: {text}")
    body = "{\n" + ",\n".join(parts) + "\n" + " " * depth + "}"
    return body + "\n" if depth == 0 else body


def known_runs(*folders: Path) -> dict[tuple[str, int], StoredRun]:
    """Return all runs of a paper by settings and seed, so that two tables share a run."""
    out: dict[tuple[str, int], StoredRun] = {}
    for path in [p for folder in folders for p in sorted(folder.glob("*.json"))]:
        store = Store(path, path.stem)
        out |= {(mark, seed): entry for mark, seed, entry in store.runs()}
    return out


def _changes(by_row: Mapping[str, str]) -> str:
    """Return what is smaller in all rows, then what is smaller in some rows only."""
    parts = {row: changed.split(", ") for row, changed in by_row.items() if changed}
    first = next(iter(parts.values()), [])
    common = [p for p in first if all(p in mine for mine in parts.values())]
    own = dict[str, list[str]]()
    for row, mine in parts.items():
        if rest := ", ".join(p for p in mine if p not in common):
            own.setdefault(rest, []).append(row)
    return "; ".join([", ".join(common)] * bool(common) + [f"{', '.join(rows)}: {rest}" for rest, rows in own.items()])


def shown(experiment: Experiment, store: Store, *, quick: bool = False) -> dict[str, tuple[str, str, Column]]:
    """Return column → (size, what is smaller, runs); the size is the one at which most rows were run."""
    out = {}
    for column in experiment.columns:
        rows = [r for r, c in experiment.grid() if c == column]
        found = []
        for size in ("quick",) if quick else ("full", "reduced"):
            cells = [experiment.cell(row, column, size) for row in rows]
            runs = {cell.row: entries for cell in cells if (entries := store.entries(cell))}
            changed = _changes({experiment.rows[c.row].title: c.changed for c in cells if c.row in runs})
            found.append(("full" if not changed else size, changed, runs))
        best = max(found, key=lambda f: len(f[2]))
        if not best[2] and not quick:
            best = _earlier(experiment, store, column, rows)
        if best[2]:
            out[column] = best
    return out


def _earlier(experiment: Experiment, store: Store, column: str, rows: Sequence[str]) -> tuple[str, str, Column]:
    """Return the runs of earlier settings of a column, and what differs from the present settings."""
    by_row, runs = dict[str, str](), Column()
    for row in rows:
        if (found := store.earlier(row, column)) is not None:
            settings, runs[row] = found
            by_row[experiment.rows[row].title] = changes(experiment.cell(row, column, "full").settings, settings)
    return EARLIER, _changes(by_row), runs
