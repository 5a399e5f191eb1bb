"""Missing data sets of runs, found before the first run begins. Studies find theirs themselves and have stand-ins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..config.components import Choice
from ..tasks.data.sets import is_absent, without_flags
from .jobs import ReproduceJob, StudyRun

__all__ = ["error", "missing_data"]


def missing_data(jobs: Sequence[ReproduceJob]) -> dict[str, list[ReproduceJob]]:
    """Return data set → the jobs that need it, for the data sets that are missing here."""
    out: dict[str, list[ReproduceJob]] = {}
    for job in jobs:
        for name, hub in () if isinstance(job, StudyRun) else dict(_sets(job.cells[0][1].settings)).items():
            if is_absent(name, hub=hub) is not None:
                out.setdefault(name, []).append(job)
    return out


def error(name: str) -> str:
    """Return the error of a run whose data set is missing."""
    with without_flags():
        return f"--task {name}: {is_absent(name)}"


def _sets(settings: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield names that may be data sets, and whether they are fetched from the hub."""
    for key in ("task", "unlabelled"):
        if key in settings:
            choice = Choice.of(settings[key])
            yield choice.name, bool(choice.params.get("hub", False))
            if key == "unlabelled" and isinstance(of := choice.params.get("of"), str):
                yield of, False
