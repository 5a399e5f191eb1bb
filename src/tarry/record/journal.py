"""Journal of a federation: a row for every change of the run, in order, and a file for every accepted update.

FOLDER/journal.jsonl         rows, append-only, each with a checksum of everything before it
FOLDER/updates/N.safetensors the update of ticket N, until two checkpoints are newer
FOLDER/checkpoints/          the last two (record/checkpoint.py)

An update counts once its file and then its row are on disk. After a kill the journal is read up to its last complete
row; a file without a row was never accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import DamagedFile
from ..core.storage import files_in, storage_errors
from ..core.tickets import LocalResult
from . import checkpoint
from .lock import FolderLock
from .rows import Log, Mark, end_of_rows, read_rows
from .run_folder import RunFolder
from .storage import make_folder
from .update_archive import read_update, write_update

__all__ = ["NAME", "Journal", "Row"]

Row = dict[str, Any]
NAME = "journal.jsonl"


class Journal:
    """The rows and updates of one folder. Only one process can hold it."""

    def __init__(self, folder: Path):
        self.folder, self._path, self._updates = folder, folder / NAME, folder / "updates"
        make_folder(self._updates)
        self._checkpoints = checkpoint.Checkpoints(folder / "checkpoints")
        self._lock = FolderLock(folder, f"{folder}: another process drives this federation")
        try:
            self._settings = RunFolder(folder).meta().settings_sha256 if (folder / "meta.json").is_file() else ""
            self.saved = self._latest_checkpoint()
            self._mark = Mark() if self.saved is None else Mark(self.saved["place"], self.saved["crc"])
            self._log = Log(self._path, end_of_rows(self._path, self._mark), buffered=False)
        except BaseException:
            self._lock.close()
            raise

    def append(self, row: Row, *, sync: bool = False) -> None:
        """Write a row. It survives a kill; with `sync`, it and all rows before it survive a power failure."""
        self._log.append(row)
        if sync:
            self._log.sync()

    def save_update(self, number: int, result: LocalResult) -> None:
        """Write an update; it is on disk when this returns."""
        write_update(self._update_file(number), result)

    def load_update(self, number: int) -> LocalResult:
        return read_update(
            self._update_file(number), "the file of an accepted update is missing; the run cannot resume"
        )

    def _update_file(self, number: int) -> Path:
        return self._updates / f"{number:08d}.safetensors"

    def rows(self) -> Iterator[Row]:
        """Yield the rows after the newest checkpoint, `saved`."""
        yield from read_rows(self._path, self._mark)

    def checkpoint(self, count: int, state: Mapping[str, Any], needed: set[int]) -> None:
        """Save the state and the position in the journal. Delete updates but those of the tickets in `needed`."""
        mark = self._log.sync()
        bound = {"settings": self._settings, "place": mark.nbytes, "crc": mark.crc}
        self._checkpoints.save(count, {**state, **bound})
        with storage_errors(self._updates, "cleaned"):
            for path in files_in(self._updates, "*.safetensors"):
                if int(path.stem) not in needed:
                    path.unlink()

    def _latest_checkpoint(self) -> Any:
        """Return the newest checkpoint, the one before it if the newest is damaged, None if there is none."""
        paths = files_in(self.folder / "checkpoints", "*.safetensors")[::-1]
        for i, path in enumerate(paths):
            try:
                saved = checkpoint.load(path)
                with checkpoint.fitting(path):
                    if saved["settings"] != self._settings:
                        raise DamagedFile(f"{path}: it is of a federation with other settings; delete it")
                return saved
            except DamagedFile:
                if i == len(paths) - 1:
                    raise
        return None

    def close(self) -> None:
        """Close the files and release the folder."""
        try:
            self._log.close()
        finally:
            self._lock.close()
