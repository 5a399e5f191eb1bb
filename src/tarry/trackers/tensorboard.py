"""TensorBoard: event files in a folder for each run.

The step is the number of updates; the time of a point is when the run began plus its virtual time, so that "Relative"
is virtual time. A resumed run writes its file again, from its first point on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..core.optional_import import optional_import
from ..core.storage import files_in
from ..record.result import Result
from .numbers import result_numbers, result_texts
from .registry import trackers
from .tracker import TrackedGroup, TrackedPoint, TrackedRun, Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoard"]

_FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Writer of event files; `folder` holds those of all runs."""

    def __init__(self, folder: str | None = None):
        with optional_import("tensorboard", extra="tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

        self._new_writer, self._folder = SummaryWriter, None if folder is None else Path(folder).resolve()
        self._writer: SummaryWriter | None = None

    def begin(self, run: TrackedRun) -> None:
        folder = Path(run.memory.get("folder", ""))
        if not run.memory or not folder.is_dir():  # a new run, or one whose folder was moved
            folder = self._folder_of(run)
            run.memory["folder"] = str(folder)
        for old in files_in(folder, "events.out.tfevents.*"):
            old.unlink()
        self._settings, self._began = dict(run.settings), run.began
        self._writer = self._new_writer(str(folder))
        self._writer.add_text("settings", _table(run.settings), walltime=run.began)
        for point in run.points:
            self._add(point)
        self._writer.flush()

    def log(self, point: TrackedPoint) -> None:
        assert self._writer is not None
        self._add(point)
        self._writer.flush()

    def _add(self, point: TrackedPoint) -> None:
        assert self._writer is not None
        for name, value in {**point.values, "virtual_time": point.time}.items():
            self._writer.add_scalar(name, value, point.updates, walltime=self._began + point.time)

    def end(self, result: Result | None) -> None:
        assert self._writer is not None
        if result is not None:
            numbers = result_numbers(result)
            self._writer.add_text("result", _table({**numbers, **result_texts(result)}))
            self._writer.add_hparams(self._settings, numbers, run_name=".", global_step=result.updates)
        self._writer.close()

    def end_group(self, group: TrackedGroup, results: Sequence[Result], files: Sequence[Path]) -> None:  # noqa: ARG002
        folder = self._root(group.folder, group.name, group.began) / "comparison"
        for old in files_in(folder, "events.out.tfevents.*"):
            old.unlink()
        with self._new_writer(str(folder)) as writer:
            for table in (file for file in files if file.suffix == ".md"):
                writer.add_text("comparison", table.read_text())

    def _root(self, folder: Path | None, name: str, began: float) -> Path:
        if self._folder is None and folder is not None:
            return folder.resolve() / _FOLDER
        unique = name if folder is not None else f"{datetime.fromtimestamp(began):%Y%m%d-%H%M%S}-{name}"
        return (self._folder or Path(_FOLDER).resolve()) / _file_name(unique)

    def _folder_of(self, run: TrackedRun) -> Path:
        """Return FOLDER, FOLDER/GROUP/LABEL/seed-N, or these in the folder of the run or of the comparison."""
        if run.group is None:
            return self._root(run.folder, run.name, run.began)
        root = self._root(run.group.folder, run.group.name, run.group.began)
        return root / _file_name(run.label) / f"seed-{run.seed}"


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text)


def _table(values: Any) -> str:
    """Return a table in Markdown."""
    rows = (f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in values.items())
    return "\n".join(["| name | value |", "|---|---|", *rows])


@trackers.register("tensorboard")
def tensorboard(
    *, folder: Annotated[str | None, "write to this folder [default: tensorboard, in --out if that is given]"] = None
) -> Tracker:
    """Write event files for TensorBoard; the step is the number of updates, relative time is virtual time."""
    return TensorBoard(folder)
