"""Rotation of process logs: a log that is too large is copied to NAME.log.1 and emptied; its process writes on."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from ...core.storage import files_in, storage_errors

__all__ = ["rotate_logs"]

_LIMIT = 16 << 20  # bytes; a log and its copy take twice this


def rotate_logs(folder: Path, limit: int = _LIMIT) -> None:
    """Rotate the logs of a folder that are larger than `limit`. Lines written meanwhile may be lost."""
    for path in files_in(folder, "*.log"):
        with storage_errors(path, "rotated"):
            if path.stat().st_size <= limit:
                continue
            with contextlib.suppress(OSError):  # on a full disk the older lines are given up
                shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)
