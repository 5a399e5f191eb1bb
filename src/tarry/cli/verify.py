"""`tarry verify`: whether a folder is complete, and is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import console

__all__ = ["verify"]


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder (--out) of a run, a comparison or a federation")
    ],
    quiet: Annotated[bool, typer.Option("--quiet", help="Print failed checks and the last line only")] = False,
) -> None:
    """Check that a folder is complete and consistent; exit with 1 if a file is not what was written.

    Settings, log, checkpoints, result and weights carry digests of each other. Nothing is trained.
    """
    from ..runs.verify import verify_folder

    found = verify_folder(folder)
    for run, check in found.checks:
        if not check.ok or not quiet:
            name = "" if run == folder else f"{run.relative_to(folder)}: "
            console.print_lines([f"{'ok    ' if check.ok else 'FAILED'}  {name}{check.text}"])
    console.print_lines([summary(found.ok, found.finished, folder)])
    if not found.ok:
        raise typer.Exit(1)


def summary(ok: bool, finished: bool, folder: Path) -> str:
    """Return the outcome in one line."""
    if not ok:
        return f"{folder}: it is not what was written"
    return f"{folder}: {'finished and' if finished else 'not finished, but'} consistent"
