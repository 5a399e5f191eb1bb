"""Timed trials: which way of batching clients is fastest here, and how much faster it is than one client at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..core.errors import DamagedFile
from ..core.tickets import LocalResult, VisitJob
from ..record.binding import unseal
from ..record.shapes import between, check_shape, fields, flag, optional, row, text
from ..record.storage import TEXT_LIMIT, read_json
from .batched.trace import NotStackable

__all__ = ["TRIES", "BatchConfig", "RecordedChoice", "TimingChoice", "Trial", "TrialCache", "choose", "seconds"]

TRIES = 3  # times a short task is measured; the shortest counts, because other work on the machine only adds
_FEWEST, _SHORT = 4, 0.05  # clients of a trial on a processor: these, or as many as take so many seconds one by one
_CLOSE, _AGAIN = 1.3, 5  # a way within this factor of the best is measured again, so often if it is _SHORT
_TINY, _QUICK = 0.005, 0.5  # seconds: a visit of a small model; a trial of which building programs is a large part


class BatchConfig(NamedTuple):
    """A way to stack clients: lanes, the most clients a stack (None: as memory allows), kernels of convolutions."""

    lanes: int
    size: int | None
    own_conv: str = ""


_CHOICE = fields(
    {
        "config": optional(row(between(1, 4096), optional(between(1, 2**31)), text)),
        "compiled": flag,
        "description": text,
        "settings": text,
    }
)


class TimingChoice(NamedTuple):
    """The fastest way, and how many times as fast as one client at a time it is."""

    config: BatchConfig
    speedup: float
    compilation: str = ""  # what was found on compiling the steps, to be read after a comma

    def describe(self) -> str:
        """Return the sentence for Result.executor_info."""
        lanes, size, own_conv = self.config
        stack = "all who wait in a stack" if lanes == 1 else "a stack a lane"
        if size is not None:
            stack = "one client a stack" if size == 1 else f"up to {size} a stack"
        more = "" if lanes == 1 else f", {lanes} lanes"
        more += f", convolutions by {own_conv}" if own_conv else ""
        more += self.compilation
        return f"clients are trained together ({stack}{more}): a step is {self.speedup:.1f} times as fast as alone"


class RecordedChoice(NamedTuple):
    """The choice of an executor at its first training. A run that is resumed or started again trains the same way."""

    config: BatchConfig | None  # None: the fallback trains
    compiled: bool
    description: str

    def dump(self) -> dict[str, Any]:
        """Return the choice as a plain record."""
        return {**self._asdict(), "config": None if self.config is None else list(self.config)}

    @classmethod
    def read(cls, path: Path, settings: str | None = None) -> RecordedChoice:
        """Return the choice in a file; raise DamagedFile if it holds none, or one of a run with other `settings`."""
        record = unseal(path, read_json(path, TEXT_LIMIT))
        check_shape(path, record, _CHOICE)
        if settings is not None and record["settings"] != settings:
            raise DamagedFile(f"{path}: it is of a run with other settings")
        return cls.of(record)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RecordedChoice:
        """Return the choice of a record; raise ValueError, KeyError or TypeError if it is none."""
        config = record["config"]
        if config is not None:
            lanes, size, own_conv = config
            config = BatchConfig(int(lanes), None if size is None else int(size), str(own_conv))
        return cls(config, bool(record["compiled"]), str(record["description"]))


@dataclass
class TrialCache:
    """Choices by kind of run, for runs that differ in seeds and settings alone, as those of a table do."""

    choices: dict[Hashable, TimingChoice] = field(default_factory=dict)


class Trial(NamedTuple):
    """The measured work of `choose`: a few steps of clients, one by one and in stacks."""

    alone: Callable[[VisitJob], LocalResult]
    together: Callable[[BatchConfig, Sequence[VisitJob]], Sequence[LocalResult]]
    compare: Callable[[Sequence[VisitJob], Sequence[LocalResult], Sequence[LocalResult]], None]  # or NotStackable
    compile_programs: Callable[[BatchConfig], None]  # now, not after many calls
    on_gpu: bool


def choose(ways: Callable[[int], Iterable[BatchConfig]], jobs: Sequence[VisitJob], trial: Trial) -> TimingChoice:
    """Time a few steps one by one and in each of the ways for so many clients, and return the fastest way.

    Raise NotStackable where none of them works.
    """
    alone, together, on_gpu = trial.alone, trial.together, trial.on_gpu
    one_by_one, took, failure = list[float](), dict[BatchConfig, float](), ""
    one_by_one += [seconds(alone, jobs[0]) for _ in range(TRIES)]
    if not on_gpu:
        jobs = jobs[: max(_FEWEST, int(_SHORT / min(one_by_one)))]
    ends = [jobs[0], jobs[-1]]
    expected = [alone(job) for job in ends]

    def measure(way: BatchConfig) -> float:
        return seconds(lambda given: together(way, given), jobs)

    for way in ways(len(jobs)):
        try:
            began = time.perf_counter()
            found = together(way, jobs)
            first = time.perf_counter() - began
            trial.compare(ends, expected, [found[0], found[-1]])  # each size has a program of its own
            took[way] = measure(way) if on_gpu or first < _QUICK else first  # programs are built by now
        except (NotStackable, torch.OutOfMemoryError) as e:
            failure = str(e)
            continue
        for _ in range(_AGAIN if took[way] < _SHORT else 1):
            if took[way] < _CLOSE * min(took.values()):
                took[way] = min(took[way], measure(way))
    if not took:
        raise NotStackable(failure)
    one_by_one += [seconds(alone, jobs[0]) for _ in range(TRIES)]
    best = min(took, key=lambda way: took[way])
    if not on_gpu and min(one_by_one) < _TINY:  # calls take most of the time, and compiled programs have fewer
        trial.compile_programs(best)
        took[best] = min(measure(best) for _ in range(_AGAIN))
    return TimingChoice(best, min(one_by_one) * len(jobs) / took[best])


def seconds(work: Callable[[Any], object], argument: Any) -> float:
    """Return the time until the results are there: a LocalResult holds a loss that was read from the device."""
    began = time.perf_counter()
    work(argument)
    return time.perf_counter() - began
