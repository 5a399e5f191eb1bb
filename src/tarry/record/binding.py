"""Binding of the files of a finished run: their digests in result.json, which carries a digest of itself."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import DamagedFile, first_line
from ..core.storage import files_in, storage_errors
from .digests import sha256_of_file
from .result_shape import BINDING
from .shapes import check_shape, fields, read_record, text
from .storage import open_regular, read_json

__all__ = ["bind", "binding_of", "file_digest", "seal", "unseal"]

_FILES = (
    "spec.toml",
    "meta.json",
    "executor.json",
    "events.jsonl",
    "journal.jsonl",
    "arrivals.csv",
    "model.safetensors",
)
_PROOFS = "proofs"
_CHUNK = 1 << 20


def bind(folder: Path) -> dict[str, Any]:
    """Return the digest of the settings (None: unknown), and length and digest of each file of the run."""
    meta = folder / "meta.json"
    settings = read_record(meta, fields({"settings_sha256": text}))["settings_sha256"] if meta.is_file() else None
    proofs = [f"{_PROOFS}/{path.name}" for path in files_in(folder / _PROOFS, "*.safetensors")]
    files = {name: file_digest(folder / name) for name in (*_FILES, *proofs) if (folder / name).is_file()}
    return {"settings_sha256": settings, "files": files}


def binding_of(path: Path) -> tuple[str | None, dict[str, list[Any]]]:
    """Return what a result.json is bound to: the digest of the settings, and the length and digest of each file."""
    raw = unseal(path, read_json(path))
    check_shape(path, raw, fields({"bound_to": BINDING}))
    return raw["bound_to"]["settings_sha256"], raw["bound_to"]["files"]


def file_digest(path: Path) -> list[Any]:
    """Return the length of a file and its digest: CRC-32 of a log, whose rows have checksums; sha256 of others."""
    if path.suffix != ".jsonl":
        with storage_errors(path, "read"):
            return [path.stat().st_size, f"sha256:{sha256_of_file(path)}"]
    size = crc = 0
    with storage_errors(path, "read"), open_regular(path) as f:
        while chunk := f.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, f"crc32:{crc:08x}"]


def seal(document: Mapping[str, Any]) -> bytes:
    """Return a JSON document with a digest of itself as the last key."""
    return (json.dumps({**document, "sha256": _digest(document)}, indent=1) + "\n").encode()


def unseal(path: Path, document: Any) -> dict[str, Any]:
    """Return a document without its digest; raise DamagedFile if it is another than when it was written."""
    if not isinstance(document, dict):
        raise DamagedFile(f"{path} cannot be read: it is not a record")
    content = {k: v for k, v in document.items() if k != "sha256"}
    try:
        same = document.get("sha256") == _digest(content)
    except (ValueError, RecursionError) as e:
        raise DamagedFile(f"{path} cannot be read: {first_line(e)}") from e
    if not same:
        raise DamagedFile(
            f"{path} cannot be read: it is not what was written (its digest differs); restore it from a copy"
        )
    return content


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
