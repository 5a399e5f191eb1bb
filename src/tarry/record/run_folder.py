"""RunFolder: the paths in the folder of a run, how a new run claims it, and what it is bound to.

OUT/meta.json            version, digest of the settings, digests of the files they name, settings that are objects
OUT/spec.toml            the spec as resolved
OUT/events.jsonl         one row an event, with checksums
OUT/arrivals.csv         every visit's duration and fate: --delay trace --delay.path OUT/arrivals.csv replays them
OUT/executor.json        how --executor batched or auto chose to train, written before the first training
OUT/tracking.json        the ids of the run in its trackers, if it has any
OUT/proofs/              a sample of visits with their results, for `tarry verify --rerun`
OUT/checkpoints/         the last two; `resume` continues from the newest
OUT/cache/               client state beyond --cache-limit, until the run is finished
OUT/model.safetensors    the final global weights by name
OUT/result.json          written last: a run with a result is finished

Checkpoints and the result carry the digest of the settings, and the length and checksum of the log.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import BadInput, DamagedFile, StorageError, first_line
from ..core.storage import files_in, parse_toml, storage_errors
from ..version import __version__
from .digests import settings_digest
from .lock import FolderLock
from .shapes import fields, list_of, read_record, table_of, text
from .storage import TEXT_LIMIT, make_folder, read_text, write_atomic

__all__ = ["RunFolder", "RunMeta", "object_comments", "runs_below"]

_META = "meta.json"
_META_SHAPE = fields({"settings_sha256": text, "objects": list_of(text), "files": table_of(text), "version": text})
_OBJECT_COMMENT = re.compile(r"^# (\w+): (a Python object \(.*\))$", re.MULTILINE)
#: what a run that was killed, or ran out of space, before its spec was written leaves
_LEFTOVERS = frozenset({_META, f"{_META}.part", "spec.toml.part", ".lock"})


@dataclass(frozen=True)
class RunMeta:
    """The settings and files that a run is bound to when it begins."""

    settings_sha256: str
    objects: list[str] = field(default_factory=list)  # settings given as Python objects: `resume` needs them again
    files: dict[str, str] = field(default_factory=dict)  # sha256 of each file that a setting names
    version: str = __version__


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def spec(self) -> Path:
        return self.path / "spec.toml"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def arrivals(self) -> Path:
        return self.path / "arrivals.csv"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def executor(self) -> Path:
        return self.path / "executor.json"

    @property
    def proofs(self) -> Path:
        return self.path / "proofs"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def is_finished(self) -> bool:
        """Return whether the run has a result; raise DamagedFile if something else is in its place."""
        if self.result.is_file():
            return True
        if os.path.lexists(self.result):
            raise DamagedFile(f"{self.result}: it is not a regular file; remove it")
        return False

    def remove_cache(self) -> None:
        """Delete what a process that ended between the result and its end has left in the cache."""
        for path in files_in(self.cache, "*.rows"):
            with storage_errors(path, "removed"):
                path.unlink(missing_ok=True)

    def lock(self) -> FolderLock:
        """Keep other processes and threads from running or resuming here."""
        return FolderLock(self.path, f"{self.path}: another process or thread is at work on this run")

    def claim(self, spec: str, *, objects: Sequence[str] = (), files: Mapping[str, str]) -> FolderLock:
        """Make and lock the folder, and write what a new run begins with; raise BadInput if it holds anything else."""
        self._check_unclaimed()
        try:
            make_folder(self.path)
        except StorageError as e:
            raise StorageError(f"--out {e}, or name another folder") from e
        lock = self.lock()
        try:
            self._check_unclaimed()  # another process may have been faster
            self.write_settings(spec, objects=objects, files=files)
        except BaseException:
            lock.close()
            raise
        return lock

    def write_settings(self, spec: str, *, objects: Sequence[str] = (), files: Mapping[str, str]) -> None:
        """Write what the run is bound to, then spec.toml."""
        meta = RunMeta(settings_digest(tomllib.loads(spec)), list(objects), dict(files))
        write_atomic(self.path / _META, (json.dumps(asdict(meta), indent=1) + "\n").encode())
        write_atomic(self.spec, spec.encode())

    def _check_unclaimed(self) -> None:
        if self.spec.exists():
            raise BadInput(
                f"--out {self.path}: it holds another run; `tarry resume {self.path}` resumes it, or name"
                " another folder"
            )
        if self.path.exists() and (
            not self.path.is_dir() or any(p.name not in _LEFTOVERS for p in files_in(self.path))
        ):
            raise BadInput(f"--out {self.path}: it is not an empty folder; name another one")

    def settings(self) -> dict[str, Any]:
        """Return the settings in spec.toml; raise DamagedFile if they are not those that the run began with."""
        found = self.written_settings()
        if settings_digest(found) != self.meta().settings_sha256:
            raise DamagedFile(
                f"{self.spec}: a setting was changed after the run began; restore it, or start a new run with"
                f" `tarry run --spec {self.spec} --out FOLDER`"
            )
        return found

    def spec_text(self) -> str:
        """Return the text of spec.toml."""
        return read_text(self.spec)

    def written_settings(self) -> dict[str, Any]:
        """Return the settings in spec.toml as they are now."""
        written = self.spec_text()
        try:
            return parse_toml(written)
        except ValueError as e:
            raise DamagedFile(f"{self.spec} cannot be read: {first_line(e)}") from e

    def meta(self) -> RunMeta:
        """Return what the run is bound to."""
        path = self.path / _META
        if not path.is_file():
            raise DamagedFile(f"{path} is missing; restore it from a copy, or start a new run with --spec {self.spec}")
        raw = read_record(path, _META_SHAPE, TEXT_LIMIT)
        return RunMeta(raw["settings_sha256"], raw["objects"], raw["files"], raw["version"])


def runs_below(folder: Path) -> list[Path]:
    """Return the folders of the runs of a comparison, finished or not, sorted."""
    found = [run for method in files_in(folder) if method.is_dir() for run in files_in(method, "seed-*")]
    return [run for run in found if any((run / name).is_file() for name in ("spec.toml", "result.json"))]


def object_comments(spec: str) -> dict[str, str]:
    """Return the comments of a spec.toml that stand for Python objects, by setting; other comments are ignored."""
    return dict(_OBJECT_COMMENT.findall(spec))
