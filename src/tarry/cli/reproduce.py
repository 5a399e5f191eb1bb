"""`tarry reproduce`: the papers' tables and figures from our runs."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.printable import printable
from ..reproduce.options import Flag, ReproduceFlags, flags
from . import console

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..reproduce.running import Report, ShowReport

__all__ = ["reproduce"]


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command one parameter for each flag of `ReproduceFlags`."""
    parameters = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=_annotation(f))
        for f in flags()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _annotation(flag: Flag) -> Any:
    shown: Any = flag.shown_default or True
    if flag.is_argument:
        return Annotated[flag.annotation, typer.Argument(metavar=flag.metavar, help=flag.help, show_default=shown)]
    option = typer.Option(f"--{flag.name}", help=flag.help, metavar=flag.metavar, show_default=shown)
    return Annotated[flag.annotation, option]


@_with_flags
def reproduce(**values: Any) -> None:
    """Run the tables and figures of the papers and compare our numbers with theirs.

    Finished runs are not repeated, and an interrupted run is resumed.
    """
    from ..reproduce.command import run_command

    command = shlex.join(["tarry", *sys.argv[1:]])
    with console.on_interrupt(f"the same command resumes: {command}"):
        failed = run_command(ReproduceFlags(**values), command, _print_line, _progress)
    for text in failed:
        console.print_error(text)
    if failed:
        raise typer.Exit(1)


def _print_line(text: str) -> None:
    console.print_lines([text])


@contextmanager
def _progress() -> Iterator[ShowReport]:
    """Yield a callback that draws a bar on a terminal and prints lines elsewhere."""
    from ..reproduce.command import print_progress

    if not console.is_terminal():
        yield print_progress()
        return
    with console.progress_bars() as bars:
        yield _drawing(bars)


def _drawing(bars: Progress) -> ShowReport:
    """Return a callback that draws one bar for all runs."""
    from ..report.formatting import duration

    task = bars.add_task("runs", total=1.0, note="")

    def update(report: Report) -> None:
        left = "" if report.left is None else f"about {duration(report.left)} left; "
        note = f"{report.done} of {report.total}; {left}{report.now}"
        bars.update(task, completed=report.share, note=printable(note))
        if report.text:
            bars.console.print(console.styled(report.text), soft_wrap=True)

    return update
