"""Files of a run: writes that are complete or absent, and reads of regular files up to a size.

Every failed system call raises StorageError with the name of the file. A file that is no regular file (a pipe, a
device) or is larger than its limit raises DamagedFile before anything is read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import Any

from ..core.errors import DamagedFile, first_line
from ..core.storage import open_regular, storage_errors

__all__ = [
    "JSON_LIMIT",
    "TEXT_LIMIT",
    "check_writable",
    "make_folder",
    "open_atomic",
    "open_regular",
    "read_bytes",
    "read_json",
    "read_text",
    "sync_folder",
    "write_atomic",
]

TEXT_LIMIT = 1 << 24  # bytes of a text: settings, a command
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK  # no link, no pipe
_SMALL = 1 << 16  # bytes; less may fit where nothing else does
JSON_LIMIT = 1 << 28  # bytes of a JSON document: a result with a million evaluations has a quarter of it


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is complete or absent, whenever the process or the machine dies."""
    with open_atomic(path) as f:
        f.write(data)


@contextmanager
def open_atomic(path: Path) -> Iterator[BufferedWriter]:
    """Open a file for writing that takes the place of `path` at the end; after an error nothing is left of it."""
    temporary = path.with_name(path.name + ".part")
    with storage_errors(path):
        try:
            with os.fdopen(os.open(temporary, _NEW, 0o666), "wb") as f:
                yield f
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, path)
        except BaseException:  # a signal, too
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def check_writable(folder: Path) -> None:
    """Raise StorageError unless a small file can be written to the folder; the file is removed."""
    path = folder / ".writable"
    with open_atomic(path) as f:
        f.write(bytes(_SMALL))
    with storage_errors(path, "removed"):
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk."""
    with storage_errors(folder):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, if they do not exist."""
    with storage_errors(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    with storage_errors(path, "read"), open_regular(path, limit) as f:
        return f.read()


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """Return the text in a regular file of at most `limit` bytes; raise DamagedFile if it is not UTF-8."""
    try:
        return read_bytes(path, limit).decode()
    except ValueError as e:
        raise DamagedFile(f"{path} cannot be read: {first_line(e)}") from e


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """Return a JSON document; raise DamagedFile if it is too large, no JSON, or nested too deeply."""
    try:
        return json.loads(read_bytes(path, limit))
    except (ValueError, RecursionError) as e:
        raise DamagedFile(f"{path} cannot be read: {first_line(e)}") from e
