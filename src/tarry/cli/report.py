"""`tarry report`: a table and a page from runs that are done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import BadInput
from ..record.result import PROGRESS, Result
from ..report.formatting import remarked
from ..report.page import write_page
from ..report.tables import markdown, summarise
from ..report.terminal import table
from . import console as show

__all__ = ["report"]


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="runs, or folders that hold runs")],
    html: Annotated[Path, typer.Option("--html", help="where the page goes")] = Path("report.html"),
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="the method that times are relative to; fedavg, if it is there")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print the table as Markdown")] = False,
) -> None:
    """Put finished runs side by side: a table here, pictures in a self-contained page."""
    found = [run for folder in folders for run in _runs(folder)]
    results = [Result.read(folder) for folder in found]
    summary = summarise(results, baseline=baseline)
    if as_markdown:
        show.console.print(markdown(summary), highlight=False, markup=False, soft_wrap=True)
    else:
        show.console.print(table(summary))
        show.lines(remarked(results))
    write_page(html, results, summary, title="Report", settings={"runs": str(len(results))}, command=None)
    show.lines([f"page with pictures: {html.resolve()}"])


def _runs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise BadInput(f"{folder}: there is no such folder")
    found = sorted({p.parent for name in ("result.json", PROGRESS) for p in folder.rglob(name)})
    if not found:
        raise BadInput(f"{folder}: no finished run is here (no result.json)")
    return found
