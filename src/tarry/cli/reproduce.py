"""`tarry reproduce`: the papers' tables and figures from our runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import Progress

from ..reproduce.command import asked, chosen, duration, plain_show, reproduce_all, told_all
from ..reproduce.listing import lines
from ..reproduce.page import write_page
from ..reproduce.running import Report, Show
from . import console as show

__all__ = ["reproduce"]


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="paper/table (orthofl/table2), a paper, or all")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="show all, with what each needs and whether results are in")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="write docs/results.md and its pictures; --quick: results-quick.md")
    ] = False,
    only_show: Annotated[
        bool,
        typer.Option("--show", help="print the tables of the results that are there, of all or NAMEs; run nothing"),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="minutes on two cores, one seed; kept apart, with --show and --page too")
    ] = False,
    size: Annotated[
        Literal["full", "reduced", "quick"] | None,
        typer.Option("--size", help="the paper's, the reduced one where that takes too long, or quick"),
    ] = None,
    only: Annotated[str | None, typer.Option("--only", help="these columns alone: mnist,cifar10")] = None,
    rows: Annotated[str | None, typer.Option("--rows", help="these rows alone: fedavg,orthofl")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="how many (3), or which (5-7 or 0,4)")] = None,
    workers: Annotated[int, typer.Option("--workers", help="runs at a time, on a GPU too")] = 1,
    within: Annotated[
        float | None,
        typer.Option(
            "--within", metavar="MINUTES", help="begin no run after so many minutes; the same command goes on"
        ),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option("--device", help="cuda if it is there", show_default=False)
    ] = None,
    executor: Annotated[
        Literal["inline", "batched", "auto"] | None,
        typer.Option("--executor", help="how a run trains its clients; auto on a GPU", show_default=False),
    ] = None,
    precision: Annotated[
        Literal["float32", "tf32", "bf16"] | None,
        typer.Option("--precision", help="of products on a GPU; float32", show_default=False),
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="have torch.compile make the steps; pays in runs of minutes")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="where runs work, and go on from when interrupted")] = Path("runs"),
    results: Annotated[
        Path | None, typer.Option("--results", help="a folder for results in place of the experiments' own")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep the folders of runs that are done")] = False,
) -> None:
    """Run a table or a figure of a paper and set our numbers beside the paper's.

    Runs that are done are not repeated, and one that was interrupted goes on.
    """
    if listed or not (names or page or only_show):
        show.lines(lines(results=results))
        return
    failed: list[str] = []
    if names or only_show:
        experiments = chosen(names or ["all"])
        command = shlex.join(["tarry", *sys.argv[1:]])
        what = asked(
            experiments,
            size=size,
            quick=quick,
            only=only,
            rows=rows,
            seeds=seeds,
            workers=workers,
            within=within,
            device=device,
            executor=executor,
            precision=precision,
            compile=compile,
            out=out,
            results=results,
            keep=keep,
            command=command,
        )
        if only_show:
            show.lines(told_all(names or [], experiments, what))
        else:
            with show.stoppable(f"the same command goes on: {command}"), _progress() as progress:
                failed = reproduce_all(experiments, what, progress, lambda text: show.lines([text]))
    if page:
        show.lines([f"page: {write_page(results=results, quick=quick or size == 'quick')}"])
    for text in failed:
        show.complaint(text)
    if failed:
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Show]:
    """A bar on a terminal, lines elsewhere."""
    if not show.is_terminal():
        yield plain_show()
        return
    with show.bars() as bars:
        yield _on(bars)


def _on(bars: Progress) -> Show:
    task = bars.add_task("runs", total=1.0, note="")

    def update(report: Report) -> None:
        left = "" if report.left is None else f"about {duration(report.left)} left; "
        note = f"{report.done} of {report.total}; {left}{report.now}"
        bars.update(task, completed=report.share, note=show.plain(note))
        if report.text:
            bars.console.print(show.plain(report.text), highlight=False, soft_wrap=True)

    return update
