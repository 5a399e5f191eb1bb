"""The event log: one typed row an event, one JSON object a line, append-only.

A checkpoint remembers how many bytes were written; resuming cuts the log there, so rows are never doubled or torn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from ..core.errors import Damaged
from ..core.events import Event

__all__ = ["Recorder", "read_rows"]

_COLUMNS = tuple(name for name in Event._fields if name != "weights")
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("client", "ticket", "visit", "staleness"), -1),
    **dict.fromkeys(("seconds", "accuracy", "loss", "notes")),
}


class Recorder:
    """A listener that writes rows; what does not apply to an event is left out of its row."""

    def __init__(self, path: Path, *, at: int = 0):
        there = path.stat().st_size if path.exists() else 0
        if there < at:
            raise Damaged(f"{path}: {there} bytes are left of a log of {at}; the run cannot be resumed, begin it anew")
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
        """For whoever reads along."""
        self._file.flush()

    def position(self) -> int:
        """How far the log is safely on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a log; a last line torn by a kill is left out."""
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as e:
                raise Damaged(f"{path}, line {number}: not a row: {e}") from e
