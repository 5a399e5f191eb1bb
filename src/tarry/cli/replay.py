"""`tarry replay`: a federation's record again under the virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..report.formatting import number_of
from ..runs.replay import replay as replayed
from . import console as show

__all__ = ["replay"]


def replay(folder: Annotated[Path, typer.Argument(metavar="DIR", help="the --out of the federation")]) -> None:
    """Simulate what a federation did, from its own record; says where the two come apart, if they do."""
    told = replayed(folder)
    accuracy = "" if told.accuracy is None else f", accuracy {told.accuracy:.4f}"
    show.lines([f"{number_of(told.updates, 'update')}{accuracy}", f"  weights sha256 {told.weights_sha256}"])
    if told.apart is not None:
        number, client, visit = told.apart
        show.lines([f"  the first update that is another: ticket {number}, client {client}, visit {visit}"])
    elif told.recorded_sha256 is None:
        show.lines(["  every update was the federation's to the bit; it is not over, so there is no last one"])
    else:
        show.lines(["  the federation's weights to the bit" if told.same else "  other weights than the federation's"])
    if not told.same:
        raise typer.Exit(1)
