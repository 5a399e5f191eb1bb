"""Weights & Biases: a run with its settings, history, summary and files; the runs of a comparison are a group.

Without WANDB_MODE and WANDB_API_KEY everything is written to files, which `wandb sync` uploads. A resumed run keeps
its id. Offline it is recorded again from its first point on, as `wandb sync` replaces a run by the later record; online
it continues after the last point that the service has.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

from ..core.optional_import import optional_import
from ..record.result import Result
from .numbers import artifacts, result_numbers, result_texts
from .registry import trackers
from .tracker import TrackedGroup, TrackedPoint, TrackedRun, Tracker

__all__ = ["Wandb"]

#: no reports of errors to the service
_ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false"}
#: what the user sets to send runs to the service; without them runs are recorded offline
_ONLINE = ("WANDB_MODE", "WANDB_API_KEY")

#: the address of W&B's process. Other processes begin one of their own: a shared one would keep the run of a process
#: that was killed, and not let it resume
_SERVICE = "WANDB_SERVICE"


class Wandb(Tracker):
    """Writer of one run of W&B at a time."""

    def __init__(self, project: str | None = None, entity: str | None = None):
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        with optional_import("wandb", extra="wandb"):
            import wandb

        self._wandb, self._project, self._entity = wandb, project, entity
        self._run: Any = None
        self._steps = self._known = 0  # of the history: those so far, and those that the service has

    def begin(self, run: TrackedRun) -> None:
        self._open(run.memory, name=run.name, group=_group_name(run.group), config=dict(run.settings))
        self._run.define_metric("virtual_time")
        self._run.define_metric("*", step_metric="virtual_time")
        self._steps, self._known = 0, self._run.step
        for point in run.points:
            self.log(point)

    def _open(self, memory: dict[str, str], **about: Any) -> None:
        """Begin a run, or resume the one in `memory`."""
        run_id = memory.setdefault("run_id", token_hex(8))
        _remove_offline_record(memory.pop("offline", ""), run_id)
        settings = self._wandb.Settings(
            console="off", disable_git=True, disable_code=True, silent=True, x_disable_stats=True
        )
        shares_service = _SERVICE in os.environ
        self._run = self._wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or "tarry",
            entity=self._entity,
            id=run_id,
            resume="allow",
            mode=None if any(os.environ.get(name) for name in _ONLINE) else "offline",
            reinit="create_new",
            settings=settings,
            **about,
        )
        if not shares_service:
            os.environ.pop(_SERVICE, None)
        if self._run.offline:
            memory["offline"] = str(Path(self._run.dir).resolve().parent)

    def log(self, point: TrackedPoint) -> None:
        if self._steps >= self._known:
            self._run.log({**point.values, "virtual_time": point.time, "updates": point.updates}, step=self._steps)
        self._steps += 1

    def end(self, result: Result | None) -> None:
        if result is None:
            self._run.finish(exit_code=1)
            return
        self._run.summary.update({**result_numbers(result), **result_texts(result)})
        with artifacts(result) as files:
            self._finish_with(files)

    def end_group(self, group: TrackedGroup, results: Sequence[Result], files: Sequence[Path]) -> None:  # noqa: ARG002
        """Add a run with the page and the table to the group."""
        self._open(group.memory, name=group.name, group=_group_name(group), job_type="comparison")
        self._finish_with(files)

    def _finish_with(self, files: Sequence[Path]) -> None:
        for file in files:
            copy = shutil.copy(file, self._run.dir)
            self._run.save(copy, base_path=self._run.dir, policy="now")
        self._run.finish()


def _group_name(group: TrackedGroup | None) -> str | None:
    return None if group is None else f"{group.name}-{datetime.fromtimestamp(group.began):%Y%m%d-%H%M%S}"


def _remove_offline_record(folder: str, run_id: str) -> None:
    """Remove the record of a process that was interrupted: the run is recorded again from its beginning."""
    path = Path(folder)
    if path.name.startswith("offline-run-") and path.name.endswith(f"-{run_id}"):
        shutil.rmtree(path, ignore_errors=True)


@trackers.register("wandb")
def wandb(
    *,
    project: Annotated[str | None, "name of the project [default: WANDB_PROJECT, or tarry]"] = None,
    entity: Annotated[str | None, "user or team that owns the project [default: your own]"] = None,
) -> Tracker:
    """Log to Weights & Biases; offline unless WANDB_MODE or WANDB_API_KEY is set."""
    return Wandb(project, entity)
