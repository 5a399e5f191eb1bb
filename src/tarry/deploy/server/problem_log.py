"""ProblemLog: log.jsonl, a line for everything that was lost or rejected, with a bounded size.

FOLDER/log.jsonl      the newest lines
FOLDER/log.jsonl.1    the lines before; the next rotation replaces them
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...core.storage import storage_errors

__all__ = ["ProblemLog"]

_LIMIT = 16 << 20  # bytes of each of the two files


class ProblemLog:
    """The log of one federation."""

    def __init__(self, folder: Path, limit: int = _LIMIT):
        self._path, self._limit = folder / "log.jsonl", limit

    def append(self, row: dict[str, Any]) -> None:
        """Write a line. When the file would exceed the limit, it becomes log.jsonl.1 before."""
        line = json.dumps(row).encode() + b"\n"
        with storage_errors(self._path):
            if self._path.exists() and self._path.stat().st_size + len(line) > self._limit:
                os.replace(self._path, self._path.with_name("log.jsonl.1"))
            with open(self._path, "ab") as file:
                file.write(line)
