"""The command `tarry`: a table of commands, and errors as one message with exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

from ..core.errors import TarryError
from ..core.storage import other_storage_errors
from ..core.user_code import user_location
from ..vector.process import tune_malloc
from ..version import __version__
from .lazy import HELP, OWN_PROCESS, LazyCommand, LazyGroup

__all__ = ["COMMANDS", "app", "main"]

TRACEBACK = "TARRY_TRACEBACK"  # environment variable: show errors of the user's code with their traceback

#: the commands in the order of `tarry --help`; each summary is the first line of the command's own help
COMMANDS: dict[str, LazyCommand] = {
    "run": LazyCommand("run:run", "Run one method on one task under the virtual clock.", pass_on=True),
    "compare": LazyCommand(
        "compare:compare",
        "Compare methods on the same data, first weights and delays; write a table and a page with plots.",
        pass_on=True,
    ),
    "tune": LazyCommand(
        "tune:tune",
        "Tune the settings of methods on validation data, with the same number of trials for each.",
        pass_on=True,
    ),
    "resume": LazyCommand("resume:resume", "Finish an interrupted run; the weights are those it would have reached."),
    "replay": LazyCommand("replay:replay", "Simulate a federation from its record and report the first difference."),
    "report": LazyCommand("report:report", "Compare finished runs in a table and a self-contained page with plots."),
    "verify": LazyCommand(
        "verify:verify",
        "Check that a folder is complete and consistent; exit with 1 if a file is not what was written.",
    ),
    "watch": LazyCommand("watch:watch", "Follow a run or a federation: print a line for every evaluation."),
    "reproduce": LazyCommand(
        "reproduce:reproduce", "Run the tables and figures of the papers and compare our numbers with theirs."
    ),
    "demo": LazyCommand(
        "demo:demo", "Compare four methods on handwritten digits under Raspberry Pi delays, without any download."
    ),
    "new": LazyCommand("new:new", "Write a commented file with a method or a task of your own, which runs as it is."),
    "doctor": LazyCommand(
        "doctor:doctor", "Report versions, devices, installed extras and data sets, with a remedy for what is missing."
    ),
    "methods": LazyCommand("catalog:methods", "List the methods, with their parameters and papers."),
    "tasks": LazyCommand("catalog:tasks", "List the tasks, with their parameters and where their data is."),
    "models": LazyCommand("catalog:models", "List the models for images, time series and texts, with their options."),
    "metrics": LazyCommand("catalog:metrics", "List the metrics, with their parameters."),
    "delays": LazyCommand(
        "delays:delays", "List the delay models, with their parameters; `fit DIR` makes one from a federation's record."
    ),
    "partitions": LazyCommand("catalog:partitions", "List the partitions, with their parameters and papers."),
    "manifolds": LazyCommand("catalog:manifolds", "List the curves along which the global model can move."),
    "schedules": LazyCommand(
        "catalog:schedules",
        "List the learning-rate schedules of clients and servers, with their parameters.",
    ),
    "unlabeled": LazyCommand("catalog:unlabeled", "List the sets of unlabeled inputs, with their parameters."),
    "federation": LazyCommand(
        "federation:federation", "Start, stop and inspect a real federation that Flower carries."
    ),
}


class _Commands(LazyGroup):
    table: ClassVar[Mapping[str, LazyCommand]] = COMMANDS


app = typer.Typer(
    name="tarry",
    cls=_Commands,
    help="Asynchronous federated learning that makes stragglers count.",
    context_settings=HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tarry {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command `tarry`."""
    tune_malloc()
    try:
        _run()
    except SystemExit as e:
        if OWN_PROCESS in os.environ:
            from .own_process import report_code

            report_code(e.code if isinstance(e.code, int) else 0)
        raise


def _run() -> None:
    try:
        with other_storage_errors():
            app()
    except TarryError as e:
        from .console import print_error  # imports rich

        print_error(str(e))
        sys.exit(2)
    except Exception as e:
        where = None if TRACEBACK in os.environ else user_location(e)
        if where is None:  # our own mistake
            raise
        from .console import print_error

        print_error(f"{where}: {type(e).__name__}: {e} ({TRACEBACK}=1 shows the whole traceback)")
        sys.exit(1)
