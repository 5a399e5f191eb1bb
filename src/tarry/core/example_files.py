"""Files of examples in a cache folder: written once, block by block, then mapped to memory.

    FOLDER/NAME-DIGEST/x.npy, y.npy      inputs and targets
                       clients.npy       the number of each example's client, where the data set names clients
                       about.json        the full digest and the sizes; written last

A digest stands for what can be known of a data set without reading all of it. Where it differs, the examples are
read again. The folder has a limit: the entries that were not used for the longest time are deleted first.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from .errors import BadInput
from .shards import Examples, Indices, MappedExamples
from .storage import storage_errors

__all__ = ["ExampleCache", "stored_type"]

BlockWriter = Callable[
    [Callable[[Examples], None]], Indices | None
]  # calls its argument with each block; → clients' numbers

_ABOUT, _CLIENTS = "about.json", "clients.npy"
_DIGITS = 16  # of a digest in the name of an entry


def stored_type(t: Tensor) -> Tensor:
    """Return numbers as they are stored: floating-point ones as float32, the type that runs train with."""
    return t.to(torch.float32) if t.is_floating_point() else t


class ExampleCache:
    """A folder of entries with at most `limit` bytes."""

    def __init__(self, folder: str | Path, limit: float):
        self.folder, self.limit = Path(folder).expanduser().resolve(), limit

    def get(self, name: str, digest: str) -> tuple[MappedExamples, Indices | None] | None:
        """Return the examples of an entry and the numbers of their clients; None if there is none of this digest."""
        entry = self._entry(name, digest)
        try:
            about = json.loads((entry / _ABOUT).read_text())
            if about["digest"] != digest:
                return None
            examples = MappedExamples(entry)
            if [len(t) for t in examples] != [about["examples"]] * 2:
                return None
            clients = np.load(entry / _CLIENTS, allow_pickle=False) if about["clients"] else None
        except (OSError, ValueError, KeyError, TypeError):  # absent, or torn
            return None
        with suppress(OSError):
            os.utime(entry)
        return examples, clients

    def put(self, name: str, digest: str, n: int, first: Examples, write: BlockWriter) -> None:
        """Write an entry of `n` examples like those of the block `first`; `write` makes all blocks in order."""
        entry, part = self._entry(name, digest), self.folder / ".part"
        with storage_errors(self.folder), self._lock():
            if self.get(name, digest) is not None:
                return  # another process has written it meanwhile
            shutil.rmtree(part, ignore_errors=True)  # what a killed process has left
            self._make_room(sum(n * t[0].nbytes for t in map(stored_type, first)))
            part.mkdir()
            try:
                clients = self._write(part, n, first, write)
                if clients is not None:
                    np.save(part / _CLIENTS, clients)
                about = {"digest": digest, "examples": n, "clients": clients is not None}
                (part / _ABOUT).write_text(json.dumps(about))
                shutil.rmtree(entry, ignore_errors=True)
                part.rename(entry)
            finally:
                shutil.rmtree(part, ignore_errors=True)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Wait until no other process writes to the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _entry(self, name: str, digest: str) -> Path:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "-" for c in name)[:60]
        return self.folder / f"{plain.lstrip('.') or 'data'}-{digest[:_DIGITS]}"

    @staticmethod
    def _write(folder: Path, n: int, first: Examples, write: BlockWriter) -> Indices | None:
        files = [_ArrayFile(folder / f"{name}.npy", n, t) for name, t in zip("xy", first, strict=True)]

        def add(block: Examples) -> None:
            for file, t in zip(files, block, strict=True):
                file.add(t)

        try:
            return write(add)
        finally:
            for file in files:
                file.close()

    def _make_room(self, nbytes: int) -> None:
        """Delete what was not used for the longest time until `nbytes` fit; raise BadInput if they cannot."""
        if nbytes > self.limit:
            raise BadInput(
                f"cache_gigabytes={self.limit / 1e9:g}: these examples take {nbytes / 1e9:.3g} GB in {self.folder};"
                " raise it, or store smaller inputs (uint8 in place of float32)"
            )
        entries = sorted((p.parent for p in self.folder.glob(f"*/{_ABOUT}")), key=lambda e: e.stat().st_mtime)
        sizes = {e: sum(f.stat().st_size for f in e.iterdir()) for e in entries}
        for entry in entries:
            if sum(sizes.values()) + nbytes <= self.limit:
                break
            shutil.rmtree(entry, ignore_errors=True)
            del sizes[entry]
        if nbytes > (free := shutil.disk_usage(self.folder).free):
            raise BadInput(
                f"cache={str(self.folder)!r}: these examples take {nbytes / 1e9:.3g} GB, and {free / 1e9:.3g} GB are"
                " free there; name a folder on a larger disk"
            )


class _ArrayFile:
    """A .npy file that is written in blocks of rows, of one type and shape."""

    def __init__(self, path: Path, n: int, like: Tensor):
        row = stored_type(like)[0]
        self._row = row
        self._file: BufferedWriter = path.open("wb")
        header: Any = {"descr": npy.dtype_to_descr(row.numpy().dtype), "fortran_order": False, "shape": (n, *row.shape)}
        npy.write_array_header_1_0(self._file, header)

    def add(self, rows: Tensor) -> None:
        """Append rows; raise BadInput if they have another type or shape than the first."""
        rows = stored_type(rows)
        if rows.shape[1:] != self._row.shape or rows.dtype != self._row.dtype:
            raise BadInput(
                f"from_dataset: some examples are {_words(rows[0])}, and the first {_words(self._row)}; all must be"
                " alike: tensors or numbers of one shape and type"
            )
        self._file.write(np.ascontiguousarray(rows.numpy()).data)

    def close(self) -> None:
        self._file.close()


def _words(t: Tensor) -> str:
    return f"{'×'.join(map(str, t.shape)) or 'a number'}, {str(t.dtype).removeprefix('torch.')}"
