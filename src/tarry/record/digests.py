"""Digests of what a run depends on: its settings, and the files that its settings name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.storage import open_regular, storage_errors
from .tensor_files import array_of

__all__ = ["EXECUTION_SETTINGS", "digest_of_vector", "file_digests", "settings_digest", "sha256_of_file"]

#: the settings of how and where clients train: they change no result and may differ when a run is resumed
EXECUTION_SETTINGS = (
    "workers",
    "executor",
    "address",
    "gpus",
    "lookahead",
    "worker_timeout",
    "checkpoint_every",
    "cache_limit",
    "proofs",
    "track",
)


def digest_of_vector(vector: Tensor) -> str:
    """Return a short digest of a vector's bytes."""
    return hashlib.blake2b(array_of(vector).data, digest_size=8).hexdigest()


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return the sha256 of settings as they are in spec.toml; those that change no bit of a result do not count."""
    counted = {name: value for name, value in settings.items() if name not in EXECUTION_SETTINGS or name == "executor"}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digests(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the sha256 of the file or folder that each setting names; a missing one is left out."""
    return {setting: sha256_of_file(path) for setting, path in files.items() if path.exists()}


def sha256_of_file(path: Path) -> str:
    """Return the sha256 of a file, or of the names and contents of a folder's files."""
    if not path.is_dir():
        with storage_errors(path, "read"), open_regular(path) as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    h = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        h.update(f"{file.relative_to(path)} {sha256_of_file(file)}\n".encode())
    return h.hexdigest()
