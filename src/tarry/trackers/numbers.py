"""Numbers for trackers: those of a run at each evaluation, from its events, and those of its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from ..core.events import Event
from ..core.metric import CurvePoint
from ..record.result import Result
from .tracker import TrackedPoint

__all__ = ["Measured", "Measurements", "artifacts", "result_numbers", "result_texts"]

_ARTIFACTS = ("model.safetensors", "spec.toml", "result.json")
_TEXTS = ("weights_sha256", "version", "executor_info")


class Measured(Protocol):
    """The counters of an engine that are tracked, and its scores so far."""

    lost: int
    rejected: int
    bytes_up: int
    bytes_down: int
    curve: list[CurvePoint]


class Measurements:
    """The points of a run. What arrivals report is averaged from one evaluation to the next.

    `wall` returns the seconds that the run has taken; None: event times are such seconds. `names` are those of the
    numbers in a list that a method reports: the layers.
    """

    def __init__(self, engine: Measured, wall: Callable[[], float] | None, names: Sequence[str] = ()):
        self._engine, self._wall, self._names = engine, wall, names
        self.points: list[TrackedPoint] = []
        self._sums: dict[str, list[float]] = {}  # name -> [count, sum]
        self._largest = -1  # staleness

    def observe(self, event: Event) -> TrackedPoint | None:
        """Count an event; return the point that an evaluation of the global model gives."""
        if event.kind == "evaluate" and event.client < 0:
            self.points.append(TrackedPoint(event.time, event.updates, self._values(event)))
            return self.points[-1]
        if event.kind == "arrival":
            self._add("staleness_mean", event.staleness)
            self._largest = max(self._largest, event.staleness)
            if event.loss is not None:
                self._add("train_loss", event.loss)
        for name, value in (event.notes or {}).items() if event.kind in ("arrival", "step") else ():
            self._add_note(f"diagnostics/{name}", value)
        return None

    def _values(self, event: Event) -> dict[str, float]:
        means = {name: total / count for name, (count, total) in self._sums.items()}
        largest = {} if self._largest < 0 else {"staleness_max": float(self._largest)}
        self._sums, self._largest = {}, -1
        e = self._engine
        counts = {
            "server_steps": event.version,
            "lost": e.lost,
            "rejected": e.rejected,
            "bytes_up": e.bytes_up,
            "bytes_down": e.bytes_down,
            "wall_s": event.time if self._wall is None else self._wall(),
        }
        return {
            **_given(event.metrics or {}),
            **means,
            **largest,
            **{name: float(count) for name, count in counts.items()},
        }

    def _add(self, name: str, value: float) -> None:
        if isfinite(value):
            total = self._sums.setdefault(name, [0.0, 0.0])
            total[0] += 1
            total[1] += value

    def _add_note(self, name: str, value: Any) -> None:
        if isinstance(value, list):
            parts = self._names if len(self._names) == len(value) else range(len(value))
            for part, number in zip(parts, value, strict=True):
                self._add(f"{name}/{part}", float(number))
        elif isinstance(value, int | float):
            self._add(name, float(value))

    def save(self) -> dict[str, Any]:
        """Return the points and the sums as a plain record."""
        points = [[p.time, p.updates, dict(p.values)] for p in self.points]
        return {"points": points, "sums": self._sums, "largest": self._largest}

    def load(self, saved: Mapping[str, Any] | None) -> None:
        """Continue from a saved record; None: the run was not tracked before, and its scores alone are known."""
        if saved is None:
            self.points = [TrackedPoint(p.time, p.updates, _given(p.metrics)) for p in self._engine.curve if p.metrics]
            return
        self.points = [TrackedPoint(time, updates, values) for time, updates, values in saved["points"]]
        self._sums, self._largest = {k: list(v) for k, v in saved["sums"].items()}, saved["largest"]


def _given(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def result_numbers(result: Result) -> dict[str, float]:
    """Return the numbers of a result by name, for a tracker's summary of the run."""
    plain = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "seed"}
    numbers = {k: v for k, v in plain.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    staleness = {f"staleness_{name}": value for name, value in result.staleness._asdict().items()}
    found = {**numbers, **staleness, **_given(result.final_metrics)}
    for name, metrics in (("validation", result.validation_metrics), ("test", result.test_metrics)):
        found |= {f"{name}_{metric}": value for metric, value in _given(metrics or {}).items()}
    return {f"final/{name.removeprefix('final_')}": float(value) for name, value in found.items()}


def result_texts(result: Result) -> dict[str, str]:
    """Return the texts of a result that say what was run, and its warnings."""
    texts = {name: str(getattr(result, name)) for name in _TEXTS if getattr(result, name)}
    return texts | ({"warnings": "\n".join(result.warnings)} if result.warnings else {})


@contextmanager
def artifacts(result: Result) -> Iterator[list[Path]]:
    """Yield the files of a run: its weights, settings and result, from its folder or written to a temporary one."""
    with TemporaryDirectory() as temporary:
        folder = result.out
        if folder is None or not (folder / "result.json").is_file():
            folder = Path(temporary) / "run"
            result.save(folder)
        yield [folder / name for name in _ARTIFACTS if (folder / name).is_file()]
