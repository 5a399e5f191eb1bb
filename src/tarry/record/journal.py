"""The journal of a federation: every change of the run as a row, in order, and every accepted update as a file.

FOLDER/journal.jsonl         rows, append-only
FOLDER/updates/N.safetensors the update of ticket N, until two checkpoints are newer
FOLDER/checkpoints/          the last two

An update counts when its file and then its row are on disk. Whatever a kill leaves is read back to the last whole row;
a file without a row was never accepted.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import BadInput, Damaged
from ..core.tickets import LocalResult
from . import checkpoint

__all__ = ["Journal", "read"]

Row = dict[str, Any]
NAME = "journal.jsonl"


class Journal:
    """Rows and updates of one folder."""

    def __init__(self, folder: Path):
        self.folder, self._path, self._updates = folder, folder / NAME, folder / "updates"
        self._updates.mkdir(parents=True, exist_ok=True)
        self._lock = open(folder / ".lock", "w")  # noqa: SIM115 - closed by close()
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, however it does
        except OSError:
            self._lock.close()
            raise BadInput(f"{folder}: another process drives this federation") from None
        whole = _whole(self._path)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._file.truncate(whole)
        self._place = whole

    def append(self, row: Row, *, sync: bool = False) -> None:
        """Behind this the row survives a kill; with `sync`, the machine's end, too, and all rows before it."""
        data = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        self._file.write(data)
        self._place += len(data)
        if sync:
            os.fsync(self._file.fileno())

    def keep(self, number: int, trained: LocalResult) -> None:
        """An update, on disk when this returns."""
        extras = {k: v.contiguous() for k, v in trained.extras.items()}
        tree = {
            "delta": trained.delta,
            "n_examples": trained.n_examples,
            "n_steps": trained.n_steps,
            "loss": trained.loss,
            "extras": extras,
        }
        checkpoint.write(self._file_of(number), tree)

    def update(self, number: int) -> LocalResult:
        path = self._file_of(number)
        if not path.is_file():
            raise Damaged(f"{path} is gone: an update that was accepted; the run cannot be taken up again")
        u = checkpoint.load(path)
        return LocalResult(u["delta"], u["n_examples"], u["n_steps"], u["loss"], True, u["extras"])

    def _file_of(self, number: int) -> Path:
        return self._updates / f"{number:08d}.safetensors"

    def rows(self, place: int = 0) -> Iterator[Row]:
        """Rows from a place on."""
        if self._place < place:
            raise Damaged(f"{self._path}: {self._place} bytes are left of {place}; the run cannot be taken up again")
        yield from read(self._path, place)

    def checkpoint(self, count: int, state: Mapping[str, Any], needed: set[int]) -> None:
        """Save the state with the place it goes on from; `needed` are tickets whose updates older ones may need."""
        os.fsync(self._file.fileno())
        checkpoint.save(self.folder / "checkpoints", count, {**state, "place": self._place})
        for path in self._updates.glob("*.safetensors"):
            if int(path.stem) not in needed:
                path.unlink()

    def latest(self) -> Any:
        """The newest checkpoint that can be read; the one before it where a kill or a disk spoilt the newest."""
        there = sorted((self.folder / "checkpoints").glob("*.safetensors"), reverse=True)
        for i, path in enumerate(there):
            try:
                return checkpoint.load(path)
            except Damaged:
                if i == len(there) - 1:
                    raise
        return None

    def close(self) -> None:
        self._file.close()
        self._lock.close()


def read(path: Path, place: int = 0) -> Iterator[Row]:
    """The whole rows of a journal."""
    with open(path, "rb") as f:
        f.seek(place)
        for line in f:
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as e:
                raise Damaged(f"{path}: a row is no JSON: {e}") from e


def _whole(path: Path) -> int:
    """Bytes up to the end of the last whole row."""
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
