"""`tarry resume`: finish a run that was interrupted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import BadInput
from . import console
from .own_process import in_own_process

__all__ = ["resume"]


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder (--out) of the run")],
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", help="Train in this many processes; the result is the same, as below", show_default="as begun"
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            help="Train the remaining visits by this executor: inline, pool, batched, ray or auto",
            show_default="as begun",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="Connect to the Ray cluster at HOST:PORT or auto", show_default="as begun"),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option("--track", help="Log to these trackers, or to none", metavar="NAME", show_default="as begun"),
    ] = None,
) -> None:
    """Finish an interrupted run; the weights are those it would have reached.

    The weights are the same to the bit on a CPU of the same kind with the same torch, also with batched. They agree up
    to rounding on a GPU, and if another executor than before trains clients together (batched, auto), or no longer.
    """
    from ..record.run_folder import RunFolder
    from ..runs.run import resume_folder

    if not (folder / "spec.toml").is_file():
        _reject_comparison(folder)
    options = {"workers": workers, "executor": executor, "address": address, "track": track or None}
    changed: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
    with console.on_interrupt(lambda: console.way_to_resume(folder)):
        if (folder / "spec.toml").is_file():
            settings = RunFolder(folder).settings() | changed
            if settings.get("executor") == "ray":
                in_own_process(settings.get("address"))
        with console.run_progress(str(folder)) as progress:
            result = resume_folder(folder, progress=progress, **changed)
    console.print_result(result)


def _reject_comparison(folder: Path) -> None:
    """Raise BadInput with the command that resumes it if the folder holds a comparison."""
    from ..record.run_folder import runs_below
    from ..record.storage import TEXT_LIMIT, read_bytes
    from ..runs.compare import COMMAND

    command = folder / COMMAND
    if command.is_file():
        text = os.fsdecode(read_bytes(command, TEXT_LIMIT)).strip()
        raise BadInput(f"{folder}: it holds a comparison; this resumes it: {text}")
    if runs_below(folder):
        raise BadInput(f"{folder}: it holds a comparison; the same `tarry compare` with --out {folder} resumes it")
