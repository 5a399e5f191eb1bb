"""`tarry delays`: the delay models there are; `tarry delays fit DIR`: one made of a federation's record."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated

import typer

from ..core.errors import BadInput
from ..delays.measured import write_trace
from ..report.formatting import number_of
from ..runs.replay import Record
from . import catalogue
from . import console as show

__all__ = ["delays"]


def delays(
    name: Annotated[str | None, typer.Argument(help="show one in full; `fit` makes one of a federation")] = None,
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="fit: the --out of the federation")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="fit: where it goes; DIR/delays.csv")] = None,
) -> None:
    """List the delay models, with their parameters and papers; `fit DIR` makes one of a federation's record."""
    if name != "fit":
        if folder is not None or out is not None:
            raise BadInput(f"tarry delays {name}: a folder is for `tarry delays fit DIR`")
        catalogue.delays(name)
        return
    if folder is None:
        raise BadInput("tarry delays fit: of which federation? Give its folder: tarry delays fit DIR")
    path, rows = out or folder / "delays.csv", Record.read(folder).trace()
    if not rows:
        raise BadInput(f"{folder}: no visit has ended yet")
    write_trace(path, rows)
    clients = sorted({r.client for r in rows})
    show.lines([f"{number_of(len(rows), 'visit')} of {number_of(len(clients), 'client')} in {path}"])
    for c in clients:
        took = [r.seconds for r in rows if r.client == c and r.fate != "lost"]
        lost = sum(r.client == c and r.fate == "lost" for r in rows)
        told = f"mean {fmean(took):.3g} s, sd {pstdev(took):.2g} s of {len(took)}" if took else "none came back"
        show.lines([f"  client {c}: {told}{f'; {lost} lost' if lost else ''}"])
    show.lines(
        [
            f"  the very same visits: --delay trace --delay.path {path}",
            f"  visits like them:     --delay empirical --delay.path {path} --delay.column seconds",
        ]
    )
