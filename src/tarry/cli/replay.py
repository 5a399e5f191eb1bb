"""`tarry replay`: the record of a federation, simulated under the virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import console

__all__ = ["replay"]


def replay(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder (--out) of the federation")]) -> None:
    """Simulate a federation from its record and report the first difference."""
    from ..report.formatting import pluralize
    from ..runs.replay import replay_folder

    found = replay_folder(folder)
    score = "" if found.score is None else f", {found.metric.name} {found.score:.4f}"
    console.print_lines([f"{pluralize(found.updates, 'update')}{score}", f"  weights sha256 {found.weights_sha256}"])
    if found.first_difference is not None:
        number, client, visit = found.first_difference
        console.print_lines([f"  the first update that is another: ticket {number}, client {client}, visit {visit}"])
    elif found.recorded_sha256 is None:
        text = "  every update was the federation's to the bit; it is not over, so there is no last one"
        console.print_lines([text])
    else:
        same = "  the federation's weights to the bit" if found.same else "  other weights than the federation's"
        console.print_lines([same])
    if not found.same:
        raise typer.Exit(1)
