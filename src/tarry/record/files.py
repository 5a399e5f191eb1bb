"""Digests of the files that a run's settings name, taken when the run began: OUT/files.json.

A run whose settings name no file has no files.json, nor has a run of an older version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import DamagedFile
from .result import write_atomic

__all__ = ["FILES", "changed_files", "digests", "write_digests"]

FILES = "files.json"


def digests(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the sha256 of the file or folder that each setting names; a missing one is left out."""
    return {setting: _sha256(path) for setting, path in files.items() if path.exists()}


def write_digests(folder: Path, found: Mapping[str, str]) -> None:
    """Write the digests into the run's folder; no file if there are none."""
    if found:
        write_atomic(folder / FILES, (json.dumps(found, indent=1) + "\n").encode())


def changed_files(folder: Path, files: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files whose content has changed since the run in the folder began."""
    path = folder / FILES
    if not path.is_file():
        return {}
    try:
        before = dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as e:
        raise DamagedFile(f"{path} cannot be read: {e}") from e
    return {s: files[s] for s, digest in digests(files).items() if before.get(s, digest) != digest}


def _sha256(path: Path) -> str:
    if not path.is_dir():
        with path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    h = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        h.update(f"{file.relative_to(path)} {_sha256(file)}\n".encode())
    return h.hexdigest()
