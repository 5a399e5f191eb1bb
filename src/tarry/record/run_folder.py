"""RunFolder: the paths in the folder of a run, how a new run claims it, and its lock.

OUT/spec.toml            the spec as resolved
OUT/files.json           digests of the files that it names
OUT/meta.json            the settings that are Python objects, if any
OUT/events.jsonl         one row an event
OUT/arrivals.csv         every visit's duration and fate: --delay trace --delay.path OUT/arrivals.csv replays them
OUT/checkpoints/         the last two; `resume` starts from the newest
OUT/cache/               client state beyond --cache-limit
OUT/model.safetensors    the final global weights by name
OUT/result.json          written last: a run with a result is finished
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BadInput, DamagedFile
from .files import FILES, write_digests
from .result import write_atomic

__all__ = ["RunFolder", "object_comments"]

_META = "meta.json"
_OBJECT_COMMENT = re.compile(r"^# (\w+): (a Python object \(.*\))$", re.MULTILINE)


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
    def is_finished(self) -> bool:
        return (self.path / "result.json").is_file()

    def claim(self, spec: str, *, objects: Sequence[str], digests: Mapping[str, str]) -> None:
        """Make the folder and write what a new run begins with; raise BadInput if it holds anything else."""
        if self.spec.exists():
            raise BadInput(
                f"--out {self.path}: it holds another run; `tarry resume {self.path}` resumes it, or name another"
                " folder"
            )
        try:
            if self.path.exists() and (not self.path.is_dir() or self._holds_anything()):
                raise BadInput(f"--out {self.path}: it is not an empty folder; name another one")
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise BadInput(f"--out {self.path}: it cannot be made ({e}); name another folder") from e
        write_digests(self.path, digests)
        (self.path / _META).unlink(missing_ok=True)  # of a run that was killed before its spec was written
        if objects:
            write_atomic(self.path / _META, (json.dumps({"objects": list(objects)}, indent=1) + "\n").encode())
        write_atomic(self.spec, spec.encode())

    def _holds_anything(self) -> bool:
        """Return whether the folder holds more than the lock of a run that was killed before it wrote its spec."""
        return any(p.name not in (FILES, _META) for p in self.path.iterdir())

    def objects(self) -> list[str]:
        """The settings that were given as Python objects: `resume` needs the same ones again."""
        meta = self.path / _META
        if not meta.is_file():
            return list(object_comments(self.spec.read_text()))  # a folder of a version before 0.1.0
        try:
            return [str(name) for name in json.loads(meta.read_text())["objects"]]
        except (ValueError, KeyError, TypeError) as e:
            raise DamagedFile(f"{meta} cannot be read: {e}") from e

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from running or resuming in this folder; the lock ends with the process."""
        with open(self.path / ".lock", "w") as f:
            try:
                fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone: forked workers do not share it
            except OSError:
                raise BadInput(f"{self.path}: another process is at work on this run") from None
            yield


def object_comments(spec: str) -> dict[str, str]:
    """Return the comments of a spec.toml that stand for Python objects, by setting; other comments are ignored."""
    return dict(_OBJECT_COMMENT.findall(spec))
