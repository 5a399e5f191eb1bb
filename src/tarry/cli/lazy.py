"""Commands that are imported when they are used, so that `tarry --help` and shell completion need no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

__all__ = ["HELP", "OWN_PROCESS", "PASS_ON", "Command", "LazyCommand", "LazyGroup"]

#: set in the second process of a command: the file descriptor on which it reports its exit code (own_process)
OWN_PROCESS = "TARRY_OWN_PROCESS"
#: context settings of every command
HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
#: context settings of commands that take `--method.NAME value`
PASS_ON: dict[str, Any] = {**HELP, "allow_extra_args": True, "ignore_unknown_options": True}


@dataclass(frozen=True)
class LazyCommand:
    """A command by the place of its function, `module:function` below tarry.cli, and its line in the list."""

    place: str
    summary: str
    pass_on: bool = False  # whether unknown flags such as --method.beta are passed on to the command

    def load(self, name: str) -> Any:
        """Return the click command, made from the function, or the group that the place names."""
        module, _, attribute = self.place.partition(":")
        found = getattr(import_module(f"{__package__}.{module}"), attribute)
        single = (
            found if isinstance(found, typer.Typer) else _application(name, found, PASS_ON if self.pass_on else HELP)
        )
        return get_command(single)


def _application(name: str, function: Callable[..., Any], settings: dict[str, Any]) -> typer.Typer:
    """Return an application of one command."""
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    application.command(name, cls=Command, context_settings=settings)(function)
    return application


class Command(TyperCommand):
    """A command whose help shows defaults as `[default: x]`: typer imports rich for this, and escapes the bracket."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments, then the options, in two columns."""
        records: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            section = "Arguments" if param.param_type_name == "argument" else "Options"
            records[section].append(_help_record(param, ctx))
        for title, rows in records.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _help_record(param: Any, ctx: typer.Context) -> tuple[str, str]:
    """Return the names of a parameter, and its help with the default."""
    shown = getattr(param, "show_default", False)  # False, True or a text in place of None
    default = shown if isinstance(shown, str) else param.get_default(ctx, call=False) if shown else None
    notes = [] if default is None or default is False else [f"default: {default}"]  # 0 is shown
    notes += ["required"] if param.required else []
    if param.param_type_name == "argument":
        name = param.make_metavar(ctx)
    else:
        param.show_default = param.required = False  # typer would add both to the help
        name, _ = param.get_help_record(ctx)
    return name, param.help + (f"  [{'; '.join(notes)}]" if notes else "")


class LazyGroup(TyperGroup):
    """A group that lists its commands from a table and imports one when it is called or its options are completed."""

    table: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "suggest_commands": False})  # click does it already
        for name, entry in self.table.items():
            self.add_command(TyperCommand(name, help=entry.summary, short_help=entry.summary, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that is called, and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else self.table[name].load(name), rest
