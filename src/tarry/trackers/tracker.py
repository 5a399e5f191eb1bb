"""Tracker: what receives a run's settings, its numbers at each evaluation, and its result.

    class Lines(tarry.Tracker):
        def begin(self, run): print(run.name, run.settings["lr"])
        def log(self, point): print(point.time, point.updates, point.values["loss"])
        def end(self, result): print(result)

`--track mine.py:Lines` and `track=Lines()` use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..record.result import Result

__all__ = ["Setting", "TrackedGroup", "TrackedPoint", "TrackedRun", "Tracker"]

#: the value of a setting, as a tracker gets it
Setting = str | int | float | bool


class TrackedPoint(NamedTuple):
    """The numbers of a run at one evaluation: accuracy, loss, staleness, traffic and what the method reports.

    >>> tarry.TrackedPoint(time=200.0, updates=14, values={"accuracy": 0.81}).values["accuracy"]
    0.81
    """

    time: float  # virtual seconds; seconds since the start in a federation
    updates: int  # accepted so far
    values: Mapping[str, float]  # finite or not; what is not measured is absent


@dataclass(frozen=True)
class TrackedGroup:
    """The comparison that a run belongs to.

    `memory` may be written: it is stored, so that a comparison which is resumed has it again.

    >>> class Groups(tarry.Tracker):
    ...     def begin(self, run):
    ...         print(run.name, "of", run.group.name)
    >>> runs = tarry.compare(["fedasync"], "digits", seeds=[0, 1], clients=3, updates=5, track=Groups())
    fedasync, seed 0 of comparison
    fedasync, seed 1 of comparison
    """

    name: str
    folder: Path | None  # of the comparison
    began: float  # seconds since 1970
    memory: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker gets it: its name, its settings, and what is known of it from before an interruption.

    `points` are those up to the checkpoint of a resumed run. Points after it, which a process that was killed may have
    logged, are logged again. `memory` may be written in `begin`: it is stored in the folder of the run, so that a
    resumed run has it again.

    >>> run = tarry.TrackedRun("fedasync, seed 0", "fedasync", "digits", 0, {"lr": 0.05}, folder=None, began=0.0)
    >>> run.settings["lr"], run.points, run.memory
    (0.05, (), {})
    """

    name: str
    label: str  # the method with the parameters that were given
    task: str
    seed: int
    settings: Mapping[str, Setting]  # flat: "method.beta"
    folder: Path | None
    began: float  # when the run began first, in seconds since 1970
    group: TrackedGroup | None = None
    points: Sequence[TrackedPoint] = ()
    memory: dict[str, str] = field(default_factory=dict)


class Tracker:
    """Receiver of a run's numbers. Override what you need; the methods here do nothing.

    A tracker changes nothing about a run. If it raises, the run continues without it, after one warning. It is used for
    one run at a time; in a comparison `begin` is called again for the next one, or in a process for each.

    >>> class Losses(tarry.Tracker):
    ...     def begin(self, run):
    ...         self.losses = []
    ...     def log(self, point):
    ...         self.losses.append(point.values["loss"])
    >>> losses = Losses()
    >>> result = tarry.run("fedasync", "digits", clients=3, updates=5, track=losses)
    >>> losses.losses == [point.loss for point in result.curve]
    True
    """

    def begin(self, run: TrackedRun) -> None:
        """Begin or resume a run.

        >>> class Name(tarry.Tracker):
        ...     def begin(self, run):
        ...         print(run.name, run.settings["clients"])
        >>> result = tarry.run("fedasync", "digits", clients=3, updates=5, track=Name())
        fedasync, seed 0 3
        """

    def log(self, point: TrackedPoint) -> None:
        """Record the numbers of one evaluation.

        >>> class Staleness(tarry.Tracker):
        ...     def log(self, point):
        ...         self.mean = point.values.get("staleness_mean")
        >>> tracker = Staleness()
        >>> result = tarry.run("fedasync", "digits", clients=1, updates=5, track=tracker)
        >>> tracker.mean
        0.0
        """

    def end(self, result: Result | None) -> None:
        """End a run; None: it was interrupted, and may be resumed.

        >>> class Last(tarry.Tracker):
        ...     def end(self, result):
        ...         print(result.updates)
        >>> result = tarry.run("fedasync", "digits", clients=3, updates=5, track=Last())
        5
        """

    def begin_group(self, group: TrackedGroup) -> None:
        """Begin or resume a comparison, before its runs.

        >>> class Group(tarry.Tracker):
        ...     def begin_group(self, group):
        ...         print(group.folder)
        >>> runs = tarry.compare(["fedasync"], "digits", seeds=[0], clients=3, updates=5, track=Group())
        None
        """

    def end_group(self, group: TrackedGroup, results: Sequence[Result], files: Sequence[Path]) -> None:
        """End a comparison, with its page and its table (Markdown and JSON) as files.

        >>> class Files(tarry.Tracker):
        ...     def end_group(self, group, results, files):
        ...         print(len(results), [file.name for file in files])
        >>> runs = tarry.compare(["fedasync"], "digits", seeds=[0], clients=3, updates=5, track=Files())
        1 ['report.html', 'table.md', 'compare.json']
        """
