"""Result of a run: the numbers of `result.json`."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.errors import BadInput, DamagedFile

__all__ = ["PROGRESS", "Point", "Result", "sha256", "staleness_summary", "write_atomic"]

PROGRESS = "progress.json"  # the result of a federation that is not over
Point = tuple[float, int, float | None, float | None]


@dataclass(frozen=True)
class Result:
    """A finished run. `curve` holds (virtual time, updates, accuracy, loss); `weights` is the final global vector."""

    method: str
    label: str  # the method with the parameters that were given
    task: str
    seed: int
    n_clients: int
    virtual_time: float
    updates: int
    rounds: int
    final_accuracy: float | None
    final_loss: float | None
    curve: list[Point]
    staleness: dict[str, float]  # mean, p95, max
    lost: int
    rejected: int
    weights_sha256: str
    wall_s: float
    bytes_up: int
    bytes_down: int
    peak_server_bytes: int
    version: str  # version
    majority_accuracy: float | None = None  # accuracy of the best constant answer
    target: float | None = None  # accuracy at which the run was to stop
    clock: str = "virtual"  # "wall" in a federation
    executor_info: str = ""  # how clients were trained, if that was chosen by measurement
    warnings: list[str] = field(default_factory=list)  # notices: settings without effect, automatic choices
    diagnostics: dict[str, Any] | None = None  # with --diagnose
    personalization: dict[str, Any] | None = None  # with --personalize: clients' own accuracy, before and after
    weights: Tensor | None = field(default=None, repr=False, compare=False)
    out: Path | None = field(default=None, compare=False)

    def to_json(self) -> str:
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("weights", "out")}
        return json.dumps(_finite(plain), indent=1) + "\n"

    @classmethod
    def read(cls, folder: str | Path) -> Result:
        """Return the result of the run in a folder, or the present one of a federation that is not over."""
        folder = Path(folder)
        path = folder / "result.json"
        if not path.is_file() and (folder / PROGRESS).is_file():
            path = folder / PROGRESS
        if not path.is_file():
            raise BadInput(f"{folder}: no finished run is here (no result.json); `tarry resume {folder}` finishes one")
        try:
            raw = json.loads(path.read_text())
            raw["curve"] = [tuple(p) for p in raw["curve"]]
            return cls(**raw, out=folder)
        except (ValueError, KeyError, TypeError) as e:
            raise DamagedFile(f"{path} cannot be read: {e}") from e


def _finite(x: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(x, float):
        return x if isfinite(x) else None
    if isinstance(x, Mapping):
        return {k: _finite(v) for k, v in x.items()}
    return [_finite(v) for v in x] if isinstance(x, list | tuple) else x


def sha256(weights: Tensor) -> str:
    """Return the digest of the bytes of a weight vector."""
    return hashlib.sha256(weights.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def staleness_summary(counts: Counter[int]) -> dict[str, float]:
    """Return mean, 95th percentile (the smallest value that at least 95% do not exceed) and maximum."""
    n = sum(counts.values())
    if n == 0:
        return {"mean": 0.0, "p95": 0, "max": 0}
    seen, p95 = 0, 0
    for value in sorted(counts):
        seen += counts[value]
        p95 = value
        if seen >= 0.95 * n:
            break
    return {"mean": sum(v * c for v, c in counts.items()) / n, "p95": p95, "max": max(counts)}


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is complete or absent, whenever the process or the machine dies."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
