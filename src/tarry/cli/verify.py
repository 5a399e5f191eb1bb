"""`tarry verify`: whether a folder is complete, and is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ..core.errors import BadInput
from . import console

if TYPE_CHECKING:
    from ..runs.verify import Rerun

__all__ = ["verify"]


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder (--out) of a run, a comparison or a federation")
    ],
    rerun: Annotated[
        str | None,
        typer.Option(
            "--rerun",
            metavar="proofs|all",
            help="Train the visits that the run stored with their results (proofs), or repeat the whole run (all)",
            show_default="none",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print failed checks and the last line only")] = False,
) -> None:
    """Check that a folder is complete and consistent; exit with 1 if a file is not what was written.

    Settings, log, checkpoints, result and weights carry digests of each other. Nothing is trained without --rerun.
    """
    if rerun not in (None, "proofs", "all"):
        raise BadInput(f"--rerun {rerun}: give proofs or all")
    from ..runs.verify import verify_folder

    found = verify_folder(folder, rerun=cast("Rerun | None", rerun))
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
