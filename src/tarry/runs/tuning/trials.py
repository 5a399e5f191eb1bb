"""Trials of a study: runs of one method at one point of its space, on each of the tuning seeds.

OUT/LABEL/seed-N/               the run, as in a comparison
OUT/LABEL/failed-N.json         the error of a run that failed; it is not begun again
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from ...config.spec import Spec
from ...core.errors import BadInput, DamagedFile, StorageError, WorkerDied, first_line
from ...record.lock import FolderBusy
from ...record.result import Result, Staleness
from ...record.shapes import fields, read_record, text
from ...record.storage import TEXT_LIMIT, make_folder, write_atomic
from ...version import __version__
from ..jobs import run_or_resume
from ..run import Progress
from ..tracking import GroupRecord
from .search import TrialPoint

__all__ = ["TuningTrial", "final_score", "run_trial", "trial_of"]

_NOTE = fields({"error": text})
_PATIENCE = 30.0  # seconds to wait for a process of a study that was killed and has not ended yet


@dataclass(frozen=True)
class TuningTrial:
    """One trial: its point, and the final score of each seed; higher is better."""

    number: int
    point: TrialPoint
    label: str  # of its runs
    scores: tuple[float | None, ...]  # None: the run failed or diverged
    error: str = ""  # of the first run that failed

    @property
    def score(self) -> float | None:
        """Return the mean over seeds; None if a run failed or diverged."""
        there = [score for score in self.scores if score is not None]
        return fmean(there) if len(there) == len(self.scores) else None

    @property
    def status(self) -> Literal["finished", "diverged", "failed"]:
        """Return how the trial ended."""
        return "failed" if self.error else "finished" if self.score is not None else "diverged"


def trial_of(number: int, point: TrialPoint, runs: Sequence[Result]) -> TuningTrial:
    """Return the trial that these runs make, one of each seed."""
    errors = [run.warnings[0] for run in runs if not run.finished]
    scores = tuple(final_score(run) if run.finished else None for run in runs)
    return TuningTrial(number, point, runs[0].label, scores, errors[0] if errors else "")


def final_score(run: Result) -> float | None:
    """Return the score on validation data by which trials are compared, with a sign: higher is better.

    None: the run diverged.
    """
    found = run.validation_metrics or {}
    # a number that is not finite is null in a file
    score, loss = found.get(run.metric.name), found.get("loss", 0.0)
    if score is None or loss is None or not isfinite(score) or not isfinite(loss):
        return None
    return run.metric.sign * score


def run_trial(
    spec: Spec, folder: Path | None, progress: Callable[[Progress], None], group: GroupRecord | None = None
) -> Result:
    """Run a trial, or read or resume it; an error of its settings or its training makes a failed result.

    Errors of the disk and of processes are not the trial's, and are raised. `group`: the study that trackers put it in.
    """
    note = None if folder is None else folder.parent / f"failed-{spec.seed}.json"
    if note is not None and note.is_file():
        error = read_record(note, _NOTE, TEXT_LIMIT)["error"]
    else:
        try:
            return _without_weights(_patiently(spec, folder, progress, group))
        except (StorageError, WorkerDied, DamagedFile, FolderBusy, OSError):  # OSError: the study's process was killed
            raise
        except Exception as e:
            error = first_line(e) if isinstance(e, BadInput) else f"{type(e).__name__}: {first_line(e)}"
        if note is not None:
            make_folder(note.parent)
            write_atomic(note, (json.dumps({"error": error}) + "\n").encode())
    progress(Progress(1.0, 0.0, 0, None))
    return _failed_result(spec, error)


def _patiently(
    spec: Spec, folder: Path | None, progress: Callable[[Progress], None], group: GroupRecord | None
) -> Result:
    """Run the trial; wait a while for another process in its folder to end."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return run_or_resume(spec, folder, progress, group=group)
        except FolderBusy:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _without_weights(result: Result) -> Result:
    """Return the result without its model: a study has many."""
    values: dict[str, Any] = {"weights": None, "layout": None, "builder": None}
    return result.__class__(**{**result.__dict__, **values})


def _failed_result(spec: Spec, error: str) -> Result:
    name = spec.name_of("method").partition(":")[0]
    return Result(
        method=name,
        label=spec.label,
        task=spec.name_of("task").partition(":")[0],
        seed=spec.seed,
        n_clients=0,
        virtual_time=0.0,
        updates=0,
        rounds=0,
        final_accuracy=None,
        final_loss=None,
        curve=[],
        staleness=Staleness(),
        lost=0,
        rejected=0,
        weights_sha256="",
        wall_s=0.0,
        bytes_up=0,
        bytes_down=0,
        peak_server_bytes=0,
        version=__version__,
        warnings=[error],
        finished=False,
    )
