"""Server memory of one row per client: in memory, or beyond a limit in a file that is mapped row by row.

    table.put(client, row)      table[client]      table.get(client) → row or None      table.pop(client)

Unlike the rest of a state, a table is written in place. A row from `get` is valid until the client's next `put`. All
rows of a table have one shape and type.

In a file, rows that a checkpoint refers to are not overwritten: a new row goes to a free slot, and the old slot becomes
free once the checkpoint is old. So a checkpoint stores slots and digests only, and a killed run finds its rows again.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import DamagedFile
from .storage import storage_errors

__all__ = ["ClientScalars", "ClientTable", "SpillPolicy"]

_RECORDS = 2  # checkpoints that a run may still be resumed from


class ClientScalars(dict[int, Any]):
    """A number, a string or a tuple of them for every client; no tensors. Written in place."""


@dataclass(frozen=True)
class SpillPolicy:
    """The memory limit of each table in bytes, and the folder of the files that larger tables are in."""

    limit: float = float("inf")
    folder: Path | None = None  # None = the folder for temporary files; the files are deleted with the process


class ClientTable:
    """Rows by client."""

    def __init__(self, rows: dict[int, Tensor] | None = None):
        self._rows = dict(rows or {})
        self._room, self._name = SpillPolicy(), ""
        self._file: _RowFile | None = None
        self._saved: dict[str, Any] | None = None  # the saved record of a file that is not opened yet
        self.nbytes = sum(row.nbytes for row in self._rows.values())

    def attach(self, room: SpillPolicy, name: str, device: torch.device | str = "cpu") -> None:
        """Attach the table to a memory limit and folder; `name` is the name of its file."""
        self._room, self._name = room, name
        if self._saved is not None:
            self._file, self._saved = _RowFile.again(_path(room, name), self._saved, device), None
            self.nbytes = len(self._file.places) * self._file.row_bytes
        elif self.nbytes > room.limit and self._file is None:
            self._to_file(next(iter(self._rows.values())))

    def get(self, client: int) -> Tensor | None:
        return self._rows.get(client) if self._file is None else self._file.get(client)

    def __getitem__(self, client: int) -> Tensor:
        row = self.get(client)
        if row is None:
            raise KeyError(client)
        return row

    def put(self, client: int, row: Tensor) -> None:
        known = client in self
        if self._file is None and not known and self.nbytes + row.nbytes > self._room.limit:
            self._to_file(row)
        if self._file is None:
            self._rows[client] = row
        else:
            self._file.put(client, row)
        self.nbytes += 0 if known else row.nbytes

    def pop(self, client: int) -> None:
        """Delete a client's row, if there is one."""
        if client in self:
            self.nbytes -= self[client].nbytes
            self._rows.pop(client, None)
            if self._file is not None:
                self._file.pop(client)

    def _clients(self) -> dict[int, Any]:
        return self._rows if self._file is None else self._file.places

    def __contains__(self, client: int) -> bool:
        return client in self._clients()

    def __len__(self) -> int:
        return len(self._clients())

    def __iter__(self) -> Iterator[int]:
        """Clients, in the order in which they first came."""
        return iter(self._clients())

    def values(self) -> Iterator[Tensor]:
        """The rows, in the same order, one at a time."""
        for client in list(self):
            yield self[client]

    @property
    def is_in_file(self) -> bool:
        """Return whether the rows are in a file."""
        return self._file is not None or self._saved is not None

    def _to_file(self, like: Tensor) -> None:
        self._file = _RowFile(_path(self._room, self._name), like)
        for client in list(self._rows):
            self._file.put(client, self._rows.pop(client))

    def save(self) -> dict[str, Any]:
        """Return a plain record: the rows, or their slots in the file. It stays valid while this table changes."""
        if self._saved is not None:
            return self._saved
        return {"rows": dict(self._rows)} if self._file is None else self._file.save()

    @classmethod
    def load(cls, saved: dict[str, Any]) -> ClientTable:
        """Return the table of a record; a file is opened by `move_in`."""
        if "rows" in saved:
            return cls(saved["rows"])
        table = cls()
        table._saved = saved
        return table

    def close(self) -> None:
        """Delete the rows, and their file."""
        self._rows = {}
        if self._file is not None:
            self._file.remove()


class _RowFile:
    """Rows in a file, each in its own slot, mapped one at a time."""

    def __init__(self, path: Path | None, like: Tensor):
        self.path, self.shape, self.dtype, self.device = path, tuple(like.shape), like.dtype, like.device
        self.row_bytes = like.nbytes
        self._stride = -(-max(like.nbytes, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.places: dict[int, int] = {}
        self._digests: dict[int, str] = {}  # by slot, of saved rows
        self._checkpointed: list[frozenset[int]] = []  # the slots that checkpoints refer to
        self._free: list[int] = []
        self._end = 0
        self._where = Path(tempfile.gettempdir()) if path is None else path  # named in errors
        with storage_errors(self._where):
            self._fd = _open_file(path)
        self._close = weakref.finalize(self, os.close, self._fd)

    def get(self, client: int) -> Tensor | None:
        place = self.places.get(client)
        if place is None:
            return None
        with storage_errors(self._where, "read"):
            mapped = mmap.mmap(self._fd, self._stride, access=mmap.ACCESS_COPY, offset=place * self._stride)
        count = self.row_bytes // self.dtype.itemsize
        return torch.frombuffer(mapped, dtype=self.dtype, count=count).reshape(self.shape).to(self.device)

    def put(self, client: int, row: Tensor) -> None:
        assert row.shape == self.shape, "rows of a table are of one shape"
        place = self._free.pop() if self._free else self._end
        numbers: Any = row.detach().cpu().contiguous().reshape(-1).numpy()
        rest, at = memoryview(numbers).cast("B"), place * self._stride
        with storage_errors(self._where):
            if place == self._end:
                self._end += 1
                os.ftruncate(self._fd, self._end * self._stride)
            while rest:
                done = os.pwrite(self._fd, rest, at)
                rest, at = rest[done:], at + done
        self._digests.pop(place, None)
        self._leave(self.places.get(client))
        self.places[client] = place

    def pop(self, client: int) -> None:
        self._leave(self.places.pop(client))

    def _leave(self, place: int | None) -> None:
        if place is not None and not any(place in slots for slots in self._checkpointed):
            self._free.append(place)

    def save(self) -> dict[str, Any]:
        if self.path is None:  # a temporary file: the rows themselves are saved
            return {"rows": {client: row.clone() for client in self.places if (row := self.get(client)) is not None}}
        with storage_errors(self._where):
            os.fsync(self._fd)
        for place in self.places.values():
            if place not in self._digests:
                self._digests[place] = self._digest(place)
        self._checkpointed = [*self._checkpointed, frozenset(self.places.values())][-_RECORDS:]
        used = set(self.places.values()).union(*self._checkpointed)
        self._free = [place for place in range(self._end) if place not in used]
        return {
            "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "places": [[c, p, self._digests[p]] for c, p in self.places.items()],
        }

    @classmethod
    def again(cls, path: Path | None, saved: dict[str, Any], device: torch.device | str) -> _RowFile:
        like = torch.empty(saved["shape"], dtype=getattr(torch, saved["dtype"]), device="meta")
        if path is None or not path.is_file():
            raise DamagedFile(
                f"{path} is gone: what the server remembered of its clients was there; begin the run again"
            )
        file = cls(path, like)
        file.device = torch.device(device)
        file.places = {c: p for c, p, _ in saved["places"]}
        file._digests = {p: d for _, p, d in saved["places"]}
        with storage_errors(path, "read"):
            file._end = os.fstat(file._fd).st_size // file._stride
        used = frozenset(file.places.values())
        file._checkpointed = [used]
        file._free = [place for place in range(file._end) if place not in used]
        for place, digest in file._digests.items():
            if place >= file._end or file._digest(place) != digest:
                raise DamagedFile(f"{path} is damaged: its rows are not what was written; begin the run again")
        return file

    def _digest(self, place: int) -> str:
        with storage_errors(self._where, "read"):
            row = os.pread(self._fd, self.row_bytes, place * self._stride)
        return hashlib.blake2b(row, digest_size=16).hexdigest()

    def remove(self) -> None:
        with storage_errors(self._where, "removed"):
            self._close()
            if self.path is not None:
                self.path.unlink(missing_ok=True)


def _open_file(path: Path | None) -> int:
    """Open a file; without a path, a temporary file that is deleted when it is closed."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    fd, name = tempfile.mkstemp(prefix="tarry-")
    os.unlink(name)
    return fd


def _path(room: SpillPolicy, name: str) -> Path | None:
    return None if room.folder is None else room.folder / f"{name}.rows"
