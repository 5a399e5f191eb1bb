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
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder (--out) of a run, a comparison or a federation; or a reproduced table or its file",
        ),
    ],
    rerun: Annotated[
        str | None,
        typer.Option(
            "--rerun",
            metavar="proofs|all",
            help="Train the stored visits again (proofs; of a table, its shortest run), or everything (all)",
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
    from ..runs.verify import Verification, verify_folder

    if files := _result_files(folder):
        from ..reproduce.verify import is_complete, verify_results

        checks = [(file, c) for file in files for c in verify_results(file, rerun=cast("Rerun | None", rerun))]
        found = Verification(folder, checks, all(c.ok for _, c in checks) and all(map(is_complete, files)))
    else:
        found = verify_folder(folder, rerun=cast("Rerun | None", rerun))
    for run, check in found.checks:
        if not check.ok or not quiet:
            name = f"{run.relative_to(folder)}: " if run != folder and run.is_relative_to(folder) else ""
            console.print_lines([f"{'ok    ' if check.ok else 'FAILED'}  {name}{check.text}"])
    console.print_lines([summary(found.ok, found.finished, folder)])
    if not found.ok:
        raise typer.Exit(1)


def _result_files(path: Path) -> list[Path]:
    """Return the files of results of reproduced tables; empty for a folder of runs."""
    if (path / "spec.toml").exists() or (path / "compare.json").exists():
        return []
    from ..reproduce.verify import result_files

    return result_files(path)


def summary(ok: bool, finished: bool, folder: Path) -> str:
    """Return the outcome in one line."""
    if not ok:
        return f"{folder}: it is not what was written"
    return f"{folder}: {'finished and' if finished else 'not finished, but'} consistent"
