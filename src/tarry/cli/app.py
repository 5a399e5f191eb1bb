"""Wiring: each command is a function in its own file. Mistakes of the user end with one message and exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..core.errors import TarryError
from ..vector.process import tune_malloc
from ..version import __version__
from . import catalogue
from . import console as show
from .compare import compare
from .delays import delays
from .demo import demo
from .federation import federation
from .flags import HELP, PASS_ON
from .replay import replay
from .report import report
from .reproduce import reproduce
from .resume import resume
from .run import run
from .watch import watch

__all__ = ["app", "main"]

app = typer.Typer(
    name="tarry",
    help="Asynchronous federated learning that makes stragglers count.",
    context_settings=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(context_settings=PASS_ON)(run)
app.command(context_settings=PASS_ON)(compare)
for command in (
    resume,
    replay,
    report,
    watch,
    reproduce,
    demo,
    catalogue.methods,
    catalogue.tasks,
    catalogue.models,
    delays,
    catalogue.partitions,
    catalogue.manifolds,
    catalogue.unlabelled,
):
    app.command(context_settings=HELP)(command)

app.add_typer(federation)


def _version(wanted: bool) -> None:
    if wanted:
        show.console.print(f"tarry {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The command `tarry`."""
    tune_malloc()
    try:
        app()
    except TarryError as e:
        show.complaint(str(e))
        sys.exit(2)
