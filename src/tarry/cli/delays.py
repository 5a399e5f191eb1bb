"""`tarry delays`: list the delay models; `tarry delays fit DIR`: write one from the record of a federation."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated

import typer

from ..core.errors import BadInput
from . import console

__all__ = ["delays"]


def delays(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show this model in full; `fit` makes one from a federation's record", show_default="list all"
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="With fit: the folder (--out) of the federation", show_default="none"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="With fit: write to this file", show_default="DIR/delays.csv")
    ] = None,
) -> None:
    """List the delay models, with their parameters; `fit DIR` makes one from a federation's record."""
    from . import catalog

    if name != "fit":
        if folder is not None or out is not None:
            raise BadInput(f"tarry delays {name}: a folder is for `tarry delays fit DIR`")
        catalog.delays(name)
        return
    if folder is None:
        raise BadInput("tarry delays fit: of which federation? Give its folder: tarry delays fit DIR")
    _fit(folder, out or folder / "delays.csv")


def _fit(folder: Path, path: Path) -> None:
    """Write the visits of a federation to `path` and print how long each client took."""
    from ..core.storage import storage_errors
    from ..delays.measured import write_trace
    from ..report.formatting import pluralize
    from ..runs.replay import Record

    rows = Record.read(folder).trace()
    if not rows:
        raise BadInput(f"{folder}: no visit has ended yet")
    with storage_errors(path):
        write_trace(path, rows)
    clients = sorted({r.client for r in rows})
    lines = [f"{pluralize(len(rows), 'visit')} of {pluralize(len(clients), 'client')} in {path}"]
    for c in clients:
        took = [r.seconds for r in rows if r.client == c and r.fate != "lost"]
        lost = sum(r.client == c and r.fate == "lost" for r in rows)
        text = f"mean {fmean(took):.3g} s, sd {pstdev(took):.2g} s of {len(took)}" if took else "none came back"
        lines.append(f"  client {c}: {text}{f'; {lost} lost' if lost else ''}")
    lines += [
        f"  the very same visits: --delay trace --delay.path {path}",
        f"  visits like them:     --delay empirical --delay.path {path} --delay.column seconds",
    ]
    console.print_lines(lines)
