"""`tarry federation`: its commands, in a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from .lazy import HELP, LazyCommand, LazyGroup

__all__ = ["COMMANDS", "federation"]

COMMANDS: dict[str, LazyCommand] = {
    "up": LazyCommand(
        "federation_up:up", "Start a federation on this machine, or restart the processes that it lacks.", pass_on=True
    ),
    "keep": LazyCommand(
        "federation_status:keep", "Submit an app to a SuperLink of this machine, and again when it is killed."
    ),
    "key": LazyCommand("federation_status:key", "Print the public key of a client, for the server's list of clients."),
    "down": LazyCommand("federation_status:down", "End the processes that `up` started, after a wait for open visits."),
    "status": LazyCommand(
        "federation_status:status", "Show late, lost and rejected clients, staleness, bytes and overhead."
    ),
    "slots": LazyCommand("federation_slots:slots", "List the slots of a federation and the clients that hold them."),
    "release": LazyCommand("federation_slots:release", "Release the slot of a client, so that another can take it."),
    "backup": LazyCommand(
        "federation_status:backup", "Copy the record of a federation to a new folder, while its server works or not."
    ),
}


class _FederationCommands(LazyGroup):
    table: ClassVar[Mapping[str, LazyCommand]] = COMMANDS


federation = typer.Typer(
    name="federation",
    cls=_FederationCommands,
    help="Start, stop and inspect a real federation that Flower carries.",
    context_settings=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@federation.callback()
def _federation() -> None:
    pass
