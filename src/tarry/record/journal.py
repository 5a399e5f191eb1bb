"""Journal of a federation: a row for every change of the run, in order, and a file for every accepted update.

FOLDER/journal.jsonl         rows, append-only
FOLDER/updates/N.safetensors the update of ticket N, until two checkpoints are newer
FOLDER/checkpoints/          the last two

An update counts once its file and then its row are on disk. After a kill the journal is read up to its last complete
row; a file without a row was never accepted.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import BadInput, DamagedFile
from ..core.tickets import LocalResult
from . import checkpoint
from .rows import read_rows

__all__ = ["NAME", "Journal", "Row"]

Row = dict[str, Any]
NAME = "journal.jsonl"


class Journal:
    """The rows and updates of one folder. Only one process can hold it."""

    def __init__(self, folder: Path):
        self.folder, self._path, self._updates = folder, folder / NAME, folder / "updates"
        self._updates.mkdir(parents=True, exist_ok=True)
        self._lock = open(folder / ".lock", "w")  # noqa: SIM115 - closed by close()
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the process ends
        except OSError:
            self._lock.close()
            raise BadInput(f"{folder}: another process drives this federation") from None
        complete = _complete_bytes(self._path)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._file.truncate(complete)
        self._place = complete

    def append(self, row: Row, *, sync: bool = False) -> None:
        """Write a row. It survives a kill; with `sync`, it and all rows before it survive a power failure."""
        data = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        self._file.write(data)
        self._place += len(data)
        if sync:
            os.fsync(self._file.fileno())

    def save_update(self, number: int, result: LocalResult) -> None:
        """Write an update; it is on disk when this returns."""
        extras = {k: v.contiguous() for k, v in result.extras.items()}
        tree = {
            "delta": result.delta,
            "n_examples": result.n_examples,
            "n_steps": result.n_steps,
            "loss": result.loss,
            "extras": extras,
        }
        checkpoint.write(self._update_file(number), tree)

    def load_update(self, number: int) -> LocalResult:
        path = self._update_file(number)
        if not path.is_file():
            raise DamagedFile(f"{path}: the file of an accepted update is missing; the run cannot be resumed")
        u = checkpoint.load(path)
        return LocalResult(u["delta"], u["n_examples"], u["n_steps"], u["loss"], True, u["extras"])

    def _update_file(self, number: int) -> Path:
        return self._updates / f"{number:08d}.safetensors"

    def rows(self, place: int = 0) -> Iterator[Row]:
        """Yield the rows from a byte position on."""
        if self._place < place:
            raise DamagedFile(f"{self._path}: {self._place} bytes are left of {place}; the run cannot be resumed")
        yield from read_rows(self._path, place)

    def checkpoint(self, count: int, state: Mapping[str, Any], needed: set[int]) -> None:
        """Save the state and the position in the journal. Delete updates but those of the tickets in `needed`."""
        os.fsync(self._file.fileno())
        checkpoint.save(self.folder / "checkpoints", count, {**state, "place": self._place})
        for path in self._updates.glob("*.safetensors"):
            if int(path.stem) not in needed:
                path.unlink()

    def latest_checkpoint(self) -> Any:
        """Return the newest checkpoint, the one before it if the newest is damaged, None if there is none."""
        paths = sorted((self.folder / "checkpoints").glob("*.safetensors"), reverse=True)
        for i, path in enumerate(paths):
            try:
                return checkpoint.load(path)
            except DamagedFile:
                if i == len(paths) - 1:
                    raise
        return None

    def close(self) -> None:
        self._file.close()
        self._lock.close()


def _complete_bytes(path: Path) -> int:
    """Return the number of bytes up to the end of the last complete row."""
    if not path.exists():
        return 0
    with open(path, "rb") as f:
        end = f.seek(0, os.SEEK_END)
        while end > 0:
            step = min(end, 1 << 16)
            f.seek(end - step)
            at = f.read(step).rfind(b"\n")
            if at >= 0:
                return end - step + at + 1
            end -= step
    return 0
