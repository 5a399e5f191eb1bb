"""Event log: one JSON object per line and event, append-only.

A checkpoint holds the number of bytes written; resuming truncates the log there, so no row is doubled or incomplete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from ..core.errors import DamagedFile
from ..core.events import Event

__all__ = ["Recorder", "read_rows"]

_COLUMNS = tuple(name for name in Event._fields if name != "weights")
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("client", "ticket", "visit", "staleness"), -1),
    **dict.fromkeys(("seconds", "accuracy", "loss", "notes")),
}


class Recorder:
    """A listener that writes a row for each event, without the fields that do not apply to it."""

    def __init__(self, path: Path, *, at: int = 0):
        size = path.stat().st_size if path.exists() else 0
        if size < at:
            raise DamagedFile(
                f"{path}: {size} bytes are left of a log of {at}; the run cannot be resumed; start it in another --out"
            )
        self._file = open(path, "ab")  # noqa: SIM115 - closed by close()
        self._file.truncate(at)
        self._file.seek(0, os.SEEK_END)

    def __call__(self, event: Event) -> None:
        row: dict[str, Any] = {}
        for name in _COLUMNS:
            value = getattr(event, name)
            if name in _DEFAULTS and value == _DEFAULTS[name]:
                continue
            row[name] = None if isinstance(value, float) and not isfinite(value) else value
        self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def flush(self) -> None:
        """Make the rows visible to readers of the file."""
        self._file.flush()

    def position(self) -> int:
        """Sync the log to disk; return its length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path, place: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log from a byte position on, without an incomplete last line."""
    with open(path, "rb") as f:
        before = f.read(place).count(b"\n")
        for number, line in enumerate(f, before + 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as e:
                raise DamagedFile(f"{path}, line {number}: not a row: {e}") from e
