"""`tarry resume`: finish a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..experiment import resume as resume_run
from . import show

__all__ = ["resume"]


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the --out of the run")],
    workers: Annotated[int | None, typer.Option("--workers", help="training processes; changes no result")] = None,
) -> None:
    """Finish an interrupted run, with the very weights it would have reached."""
    with show.one(str(folder)) as progress:
        changed: dict[str, Any] = {} if workers is None else {"workers": workers}
        result = resume_run(folder, progress=progress, **changed)
    show.result_lines(result)
