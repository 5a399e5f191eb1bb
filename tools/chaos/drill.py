"""A drill: one run that meets trouble of one kind, drawn from a seed. What the kinds have in common."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .checks import check_same, check_verified, finish, is_finished
from .commands import Child, command
from .settings import RunSetting

__all__ = ["Drill", "draw_moment", "end_like_reference", "finish_run", "start"]

#: files whose appearance or change is a moment to act: those that a run writes, in their order
_WRITTEN = (
    *("meta.json*", "spec.toml*", "executor.json*", "events.jsonl", "checkpoints/*.part", "checkpoints/*.safetensors"),
    *("cache/*", "proofs/*", "arrivals.csv", "model.safetensors*", "result.json*"),
)


@dataclass
class Drill:
    """One drill: its kind and seed, its folder, and what it has counted. `method` is of the seed, too."""

    kind: str
    seed: int
    folder: Path
    method: str
    counts: Counter[str] = field(default_factory=Counter)
    about: str = ""  # the setting, in short

    def __post_init__(self) -> None:
        self.rng = Random(f"{self.kind} {self.seed}")

    def describe(self, setting: RunSetting) -> None:
        """Note the setting for the line of this drill."""
        self.about = f"{setting.method} {setting.executor}"


def start(
    drill: Drill, setting: RunSetting, out: Path, prepare: Callable[[], object] = lambda: None, *, may_exec: bool = True
) -> Child:
    """Start the run in a folder, or resume what is there; sometimes in a new Python, if `prepare` survives that."""
    fresh = drill.rng.random() < 0.05 and may_exec
    more = setting.other_executor(drill.rng)
    drill.counts["starts"] += 1
    if (out / "spec.toml").is_file():
        return command("resume", out, *more, fresh=fresh, prepare=prepare)
    return command("run", *setting.words(), "--out", out, fresh=fresh, prepare=prepare)


def draw_moment(rng: Random, out: Path) -> Callable[[], bool]:
    """Draw a moment of a run in a folder: a time, or a while after it has written a file of some kind."""
    if rng.random() < 0.4:
        end = time.monotonic() + rng.uniform(0.0, 1.0)
        return lambda: time.monotonic() >= end
    pattern, pause = rng.choice(_WRITTEN), rng.choice((0.0, rng.uniform(0.0, 0.01), rng.uniform(0.0, 0.3)))
    before, since = _state(out, pattern), list[float]()

    def has_come() -> bool:
        if not since and _state(out, pattern) - before:
            since.append(time.monotonic())
        return bool(since) and time.monotonic() >= since[0] + pause

    return has_come


def _state(out: Path, pattern: str) -> set[tuple[str, int, int]]:
    found = set()
    for path in out.glob(pattern):
        try:
            stat = path.stat()
        except OSError:
            continue
        found.add((path.name, stat.st_size, stat.st_mtime_ns))
    return found


def finish_run(drill: Drill, setting: RunSetting, out: Path) -> None:
    """Resume the run until it is finished, without any trouble."""
    if not is_finished(out):
        finish(start(drill, setting, out))


def end_like_reference(drill: Drill, setting: RunSetting, out: Path) -> None:
    """Finish the run; require the numbers of the uninterrupted one, and a folder that `tarry verify` accepts."""
    finish_run(drill, setting, out)
    check_same(out, reference_of(drill, setting, out))
    check_verified(out, *(("--rerun", "proofs") if drill.rng.random() < 0.25 else ()))


def reference_of(drill: Drill, setting: RunSetting, out: Path) -> Path:
    """Run without trouble what a folder holds. An executor that chooses by measurement gets the choice made there."""
    reference = drill.folder / "reference"
    if reference.exists():
        return reference
    if setting.chooses:
        reference.mkdir()
        for name in ("meta.json", "spec.toml", "executor.json"):
            if (out / name).is_file():
                shutil.copy(out / name, reference / name)
        finish(command("resume", reference))
    else:
        finish(command("run", *setting.words(), "--out", reference))
    return reference
