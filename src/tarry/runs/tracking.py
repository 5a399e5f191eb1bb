"""Tracking: calls of the trackers of a run or a comparison, which cannot end or change it.

A tracker that raises is dropped after one warning. What trackers remember of a run, such as its id, is in
OUT/tracking.json; the points so far are in the checkpoints, so that a resumed run continues its curves.
"""

from __future__ import annotations

import json
import logging
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..config.components import REGISTRIES, Choice
from ..config.spec import Spec
from ..config.track_syntax import build_tracker, errors_under_track, track_texts
from ..core.errors import first_line
from ..core.events import Event
from ..record import shapes
from ..record.result import Result
from ..record.storage import TEXT_LIMIT, make_folder, write_atomic
from ..report.page import write_page
from ..report.tables import Summary, markdown, to_json
from ..trackers.numbers import Measured, Measurements
from ..trackers.tracker import SettingValue, TrackedGroup, TrackedRun, Tracker

__all__ = ["ComparisonTracking", "GroupRecord", "Tracking", "build_trackers", "flat_settings"]

log = logging.getLogger("tarry")

FILE = "tracking.json"
_LONGEST = 500  # characters of a setting, such as a list of durations
_SHAPE = shapes.fields({"began": shapes.number, "memories": shapes.table_of(shapes.table_of(shapes.text))})


def build_trackers(spec: Spec) -> dict[str, Tracker]:
    """Return the trackers that the spec names, by how they are written; BadInput if a library is missing."""
    with errors_under_track():
        made = [build_tracker(tracked) for tracked in spec.track or ()]
    return dict(zip(track_texts(spec.track or ()), made, strict=True))


def flat_settings(spec: Spec) -> dict[str, SettingValue]:
    """Return the settings of a spec as texts and numbers, with the parameters of its components: "method.beta"."""
    flat: dict[str, SettingValue] = {}
    for f in fields(spec):
        value = getattr(spec, f.name)
        if value is None or f.name == "track":
            continue
        if isinstance(value, Choice):
            entry = REGISTRIES[f.name].find(value.name)
            defaults = {p.name: p.default for p in entry.params if not p.required}
            flat[f.name] = value.name
            flat |= {f"{f.name}.{name}": _plain(item) for name, item in {**defaults, **value.params}.items()}
        else:
            flat[f.name] = spec.name_of(f.name) if f.name in (*REGISTRIES, "metric") else _plain(value)
    return flat


def _plain(value: Any) -> SettingValue:
    return value if isinstance(value, bool | int | float) else str(value)[:_LONGEST]


@dataclass
class _Memories:
    """Texts that trackers remember of a run or a comparison, by tracker; in a file if there is a folder."""

    path: Path | None
    began: float = field(default_factory=clock.time)
    by_tracker: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path | None) -> _Memories:
        path = None if folder is None else folder / FILE
        if path is None or not path.is_file():
            return cls(path)
        try:
            raw = shapes.read_record(path, _SHAPE, TEXT_LIMIT)
        except Exception as e:
            log.warning("%s; its trackers begin new runs", first_line(e))
            return cls(path)
        return cls(path, raw["began"], raw["memories"])

    def write(self) -> None:
        if self.path is not None:
            make_folder(self.path.parent)
            record = {"began": self.began, "memories": self.by_tracker}
            write_atomic(self.path, (json.dumps(record, indent=1) + "\n").encode())


class _Guarded:
    """Trackers by name; one that raises is dropped after one warning."""

    def __init__(self, trackers: Mapping[str, Tracker], what: str):
        self._trackers, self._what = dict(trackers), what

    def each(self, call: Callable[[str, Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(name, tracker)
            except Exception as e:
                del self._trackers[name]
                error = f"{type(e).__name__}: {first_line(e)}"
                log.warning("%s: tracking by %s failed (%s); it continues without", self._what, name, error)


@dataclass(frozen=True)
class GroupRecord:
    """A comparison as its runs know it, in this process or another."""

    name: str
    folder: Path | None
    began: float
    memories: Mapping[str, dict[str, str]]

    def of(self, tracker: str) -> TrackedGroup:
        """The group as a tracker gets it."""
        return TrackedGroup(self.name, self.folder, self.began, self.memories.get(tracker, {}))


class Tracking:
    """Listener that gives the numbers of one run to its trackers.

    `layers` are the names of what methods report in lists. `wall` returns the seconds that the run has taken so far;
    None: its clock counts them.
    """

    def __init__(
        self,
        spec: Spec,
        trackers: Mapping[str, Tracker],
        *,
        task: str,
        folder: Path | None,
        layers: Sequence[str],
        group: GroupRecord | None = None,
        wall: Callable[[], float] | None = None,
    ):
        self._spec, self._task, self._folder, self._group = spec, task, folder, group
        self._trackers = _Guarded(trackers, f"{spec.label}, seed {spec.seed}")
        self._layers, self._wall = layers, wall
        self._measurements: Measurements | None = None
        self._ended = False

    def begin(self, engine: Measured, saved: Mapping[str, Any] | None, *, resumed: bool) -> None:
        """Begin to track a run, or go on after the points in a checkpoint's record."""
        self._measurements = Measurements(engine, self._wall, self._layers)
        if resumed:
            self._measurements.load(saved)
        memories, points = _Memories.of(self._folder), tuple(self._measurements.points)
        spec, settings = self._spec, flat_settings(self._spec)

        def begin(name: str, tracker: Tracker) -> None:
            group = None if self._group is None else self._group.of(name)
            memory = memories.by_tracker.setdefault(name, {})
            title = f"{spec.label}, seed {spec.seed}"
            tracker.begin(
                TrackedRun(
                    title, spec.label, self._task, spec.seed, settings, self._folder, memories.began, group, points,
                    memory,
                )
            )  # fmt: skip
            memories.write()

        self._trackers.each(begin)

    def __call__(self, event: Event) -> None:
        assert self._measurements is not None
        point = self._measurements.observe(event)
        if point is not None:
            self._trackers.each(lambda _, tracker: tracker.log(point))

    def save(self) -> dict[str, Any]:
        """Return the points so far as a plain record, for a checkpoint."""
        assert self._measurements is not None
        return self._measurements.save()

    def end(self, result: Result | None) -> None:
        """End the run with its result; None: it was interrupted. A second call does nothing."""
        if not self._ended and self._measurements is not None:
            self._ended = True
            self._trackers.each(lambda _, tracker: tracker.end(result))


class ComparisonTracking:
    """Trackers of a comparison as a whole; its runs are tracked where they run, with the `record`."""

    def __init__(self, spec: Spec, folder: Path | None):
        self._folder = folder
        name = "comparison" if folder is None else folder.resolve().name or "comparison"
        self._trackers = _Guarded(build_trackers(spec), name)
        memories = _Memories.of(folder)
        self.record = GroupRecord(name, folder, memories.began, memories.by_tracker)

        def begin(tracker_name: str, tracker: Tracker) -> None:
            memories.by_tracker.setdefault(tracker_name, {})
            tracker.begin_group(self.record.of(tracker_name))
            memories.write()

        self._memories = memories
        self._trackers.each(begin)

    def end(self, results: Sequence[Result], summary: Summary) -> None:
        """Give the trackers the table and the page."""
        with TemporaryDirectory() as temporary:
            page, table, rows = (Path(temporary) / name for name in ("report.html", "table.md", "compare.json"))

            def end(name: str, tracker: Tracker) -> None:
                if not page.exists():
                    write_page(page, results, summary, title="Comparison", settings={"runs": str(len(results))})
                    table.write_text(markdown(summary))
                    rows.write_text(to_json(summary))
                tracker.end_group(self.record.of(name), results, [page, table, rows])
                self._memories.write()

            self._trackers.each(end)
