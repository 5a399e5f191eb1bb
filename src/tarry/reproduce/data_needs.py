"""The data sets that runs need, looked for before any run is begun. Studies look for theirs: they have stand-ins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..config.components import Choice
from ..tasks.data.sets import absent, without_flags
from .jobs import ReproduceJob, StudyRun

__all__ = ["lacking", "said"]


def lacking(jobs: Sequence[ReproduceJob]) -> dict[str, list[ReproduceJob]]:
    """Data set → the jobs that need it, of those that cannot be had here."""
    out: dict[str, list[ReproduceJob]] = {}
    for job in jobs:
        for name, hub in () if isinstance(job, StudyRun) else dict(_sets(job.cells[0][1].settings)).items():
            if absent(name, hub=hub) is not None:
                out.setdefault(name, []).append(job)
    return out


def said(name: str) -> str:
    """What a run would say of a data set that is lacking."""
    with without_flags():
        return f"--task {name}: {absent(name)}"


def _sets(settings: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Names that may be those of data sets, and whether the hub is asked for them."""
    for key in ("task", "unlabelled"):
        if key in settings:
            choice = Choice.of(settings[key])
            yield choice.name, bool(choice.params.get("hub", False))
            if key == "unlabelled" and isinstance(of := choice.params.get("of"), str):
                yield of, False
