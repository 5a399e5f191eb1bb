"""Flags made from the settings of `Spec`, so that the command line has the same names and types as TOML and Python.

`--lr 0.1`, `--method orthofl`, and any parameter of a method, task, delay or partition as `--method.beta 0.4`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config.components import REGISTRIES, Choice, uncrossed
from ..config.spec import Spec, settings
from ..core.errors import BadInput, near

__all__ = ["gather", "with_settings"]

_SHAPES = {**dict.fromkeys(REGISTRIES, "NAME"), "presence": "FILE", "personalise": "EPOCHS"}


def with_settings(*, leave_out: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each setting; it gets them as `given`, those that were not there left out."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "given"]
        made = [_option(name) for name in settings() if name not in leave_out]

        def wrapped(**values: Any) -> None:
            given = {p.name: values.pop(p.name) for p in made}
            command(given={k: v for k, v in given.items() if v is not None}, **values)

        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        hints = inspect.get_annotations(command, eval_str=True)
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own]
        wrapped.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in (*own, *made)}
        return wrapped

    return decorate


def _option(name: str) -> inspect.Parameter:
    param = settings()[name]
    flag, help_text = "--" + name.replace("_", "-"), param.help.replace(" [default: ", "  [default: ")
    shown = "off" if param.default is False else param.default
    default = "" if shown is None else f"  [default: {shown}]"
    if param.type is bool:
        kind: Any = Annotated[
            bool | None, typer.Option(f"{flag}/--no-{name}", help=help_text + default, show_default=False)
        ]
    else:
        shape = _SHAPES.get(name, param.type_name.replace(" | none", ""))
        option = typer.Option(flag, help=help_text + default, metavar=shape, show_default=False)
        kind = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def gather(given: Mapping[str, Any], context: typer.Context, spec: Path | None) -> dict[str, Any]:
    """TOML, then flags over it, then `--method.NAME value` over both."""
    merged = Spec.read(spec) if spec is not None else {}
    if given.get("method") is not None or given.get("server") is not None:
        merged = {k: v for k, v in merged.items() if k not in ("method", "server")}
    merged, problems = uncrossed({**merged, **given})
    if problems:
        raise BadInput(problems)
    for group, parameter, value in _dotted(context.args, lambda flag: _hint(flag, context, merged)):
        group = "server" if group == "method" and merged.get("server") is not None else group
        base = merged.get(group, settings()[group].default)
        if base is None:
            raise BadInput(f"--{group}.{parameter} {value}: of which {group}? Give --{group} NAME too")
        try:
            choice = Choice.of(base)
        except ValueError as e:
            raise BadInput(f"--{group} {base}: {e}") from e
        merged[group] = Choice(choice.name, {**choice.params, parameter: value})
        if group == "server":
            merged["method"] = merged["server"]
    return merged


def _hint(flag: str, context: typer.Context, merged: Mapping[str, Any]) -> str:
    """' Did you mean x?' of a flag that is none: a parameter of what is chosen, else a flag like it, or of others."""
    params, name = context.command.params, flag.replace("-", "_")
    several = any(p.name == "method" and getattr(p, "multiple", False) for p in params)  # each with its own
    own, others = _whose(name, {**merged, "method": None} if several else merged)
    ways = {g: f"--{g}.{name.replace('_', '-')}" for g in own or others}
    if several and "method" in ways:
        ways["method"] = f"--method NAME:{name}=VALUE"
    like = "" if own else near(flag, [o.removeprefix("--") for p in params for o in p.opts])
    meant = [like.partition(" Did you mean ")[2].rstrip("?"), " or ".join(ways.values())]
    return f" Did you mean {', or '.join(m for m in meant if m)}?" if any(meant) else ""


def _whose(parameter: str, merged: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The groups in which what is chosen has that parameter, and those in which anything has it."""
    own, others = list[str](), list[str]()
    for group in ("method", "task", "delay", "partition"):
        registry, chosen = REGISTRIES[group], merged.get(group, settings()[group].default)
        with suppress(BadInput, ValueError):  # of a name that is none, or a table without one: told elsewhere
            if parameter in (p.name for p in registry.entry(Choice.of(chosen).name).params):
                own.append(group)
        if any(parameter == p.name for name in registry.names() for p in registry.entry(name).params):
            others.append(group)
    return own, others


def _dotted(extra: Sequence[str], hint: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """The (group, parameter, value) of each `--group.parameter value` or `--group.parameter=value`.

    `hint` is what to say of a flag that is none.
    """
    out, problems, rest = [], [], list(extra)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        group, dot, parameter = flag.removeprefix("--").partition(".")
        if not word.startswith("--") or not dot or group not in REGISTRIES:
            if word.startswith("--") and not equals and rest and not rest[0].startswith("--"):
                word += f" {rest.pop(0)}"
            problems.append(
                f"{word}: there is no such flag.{hint(flag.removeprefix('--'))} `--help` lists them, and parameters go "
                "as --method.NAME value"
            )
        elif not equals and not rest:
            problems.append(f"{word}: a value is missing")
        else:
            out.append((group, parameter.replace("-", "_"), value if equals else rest.pop(0)))
    if problems:
        raise BadInput(problems)
    return out
