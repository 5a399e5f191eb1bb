"""`tarry resume`: finish a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ..core.errors import BadInput
from ..runs.compare import COMMAND
from ..runs.run import resume as resume_run
from . import console as show

__all__ = ["resume"]


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the --out of the run")],
    workers: Annotated[int | None, typer.Option("--workers", help="training processes; changes no result")] = None,
    executor: Annotated[
        str | None,
        typer.Option("--executor", help="how clients are trained from here on: inline, pool, batched, ray, auto"),
    ] = None,
    address: Annotated[str | None, typer.Option("--address", help="of the Ray cluster, HOST:PORT or auto")] = None,
) -> None:
    """Finish an interrupted run, with the very weights it would have reached.

    Clients may be trained elsewhere than before. Trained together (batched, auto) their updates differ by rounding.
    """
    if not (folder / "spec.toml").is_file():
        _no_comparison(folder)
    go_on = f"`tarry resume {quote(str(folder))}` goes on"
    with show.stoppable(go_on), show.one(str(folder)) as progress:
        asked = {"workers": workers, "executor": executor, "address": address}
        changed: dict[str, Any] = {k: v for k, v in asked.items() if v is not None}
        result = resume_run(folder, progress=progress, **changed)
    show.result_lines(result)


def _no_comparison(folder: Path) -> None:
    command = folder / COMMAND
    if command.is_file():
        raise BadInput(f"{folder}: it holds a comparison; this goes on with it: {command.read_text().strip()}")
    if any(folder.glob("*/seed-*/spec.toml")):
        raise BadInput(f"{folder}: it holds a comparison; the same `tarry compare` with --out {folder} goes on with it")
