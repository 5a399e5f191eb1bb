"""`tarry report`: a table and a page from the records of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ..core.errors import BadInput, StorageError
from ..core.storage import storage_errors
from . import console

__all__ = ["report"]


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or folders that hold some")],
    html: Annotated[Path, typer.Option("--html", help="Write the page to this file")] = Path("report.html"),
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", help="Give times relative to those of this method", show_default="fedavg where present"
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown")] = False,
) -> None:
    """Compare finished runs in a table and a self-contained page with plots."""
    from ..record.result import Result
    from ..report.formatting import warning_lines
    from ..report.page import write_page
    from ..report.significance import significance
    from ..report.tables import markdown, summarize
    from ..report.terminal import table

    found = [run for folder in folders for run in _runs(folder)]
    results = [Result.read(folder) for folder in found]
    summary = summarize(results, baseline=baseline)
    if as_markdown:
        console.print_lines([*markdown(summary).splitlines(), *significance(results).sentences()])
    else:
        console.console().print(table(summary))
        console.print_lines(significance(results).sentences())
        console.print_lines(warning_lines(results))
    try:
        write_page(html, results, summary, title="Report", settings={"runs": str(len(results))}, command=None)
    except StorageError as e:
        raise StorageError(f"--html {html}: {e}, or name another file") from e
    console.print_lines([f"page with pictures: {html.resolve()}"])


def _runs(folder: Path) -> list[Path]:
    """Return the run folders in a folder."""
    from ..record.result import PROGRESS

    if not folder.is_dir():
        raise BadInput(f"{folder}: there is no such folder")
    wanted = {"result.json", PROGRESS}
    found = sorted(Path(at) for at, _, names in os.walk(folder, onerror=_fail) if wanted.intersection(names))
    if not found:
        raise BadInput(f"{folder}: no finished run is here (no result.json)")
    return found


def _fail(error: OSError) -> NoReturn:
    with storage_errors(error.filename, "read"):
        raise error
