"""Flags made from the settings of `Spec`, so that the command line has the same names and types as TOML and Python.

`--lr 0.1`, `--method orthofl`, and any parameter of a method, task, delay or partition as `--method.beta 0.4`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import BadInput
from .setting_list import FlagSetting, setting_list

__all__ = ["gather", "with_settings"]

_METAVARS = {"availability": "FILE", "metric": "NAMES", "personalize": "EPOCHS", "track": "NAME"}
_REPEATED = ("track",)  # these flags may be given several times


def with_settings(*, leave_out: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each setting; it gets the options that were used as the mapping `given`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "given"]
        options = [_option(setting) for setting in setting_list() if setting.name not in leave_out]

        def with_given(**values: Any) -> None:
            given = {p.name: values.pop(p.name) for p in options}
            command(given={k: v for k, v in given.items() if v not in (None, [])}, **values)

        with_given.__name__, with_given.__doc__ = command.__name__, command.__doc__
        hints = inspect.get_annotations(command, eval_str=True)
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own]
        with_given.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        with_given.__annotations__ = {p.name: p.annotation for p in (*own, *options)}
        return with_given

    return decorate


def _option(setting: FlagSetting) -> inspect.Parameter:
    """Return the parameter of a command that stands for a setting."""
    flag = "--" + setting.name.replace("_", "-")
    shown = "off" if setting.default is False else setting.default
    text = setting.help.replace(" [default: ", "  [default: ") + ("" if shown is None else f"  [default: {shown}]")
    if setting.types == ("bool",):
        switch = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)
        kind: Any = Annotated[bool | None, switch]
    else:
        metavar = _METAVARS.get(setting.name, "NAME" if setting.is_component else " | ".join(setting.types))
        value = list[str] if setting.name in _REPEATED else str
        kind = Annotated[value | None, typer.Option(flag, help=text, metavar=metavar, show_default=False)]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def gather(given: Mapping[str, Any], context: typer.Context, spec: Path | None) -> dict[str, Any]:
    """Return the settings of a TOML file, replaced by flags, replaced by `--method.NAME value`."""
    from ..config.components import Choice
    from ..config.cross_syntax import expand_cross
    from ..config.spec import Spec, settings

    merged = Spec.read(spec) if spec is not None else {}
    merged, problems = expand_cross({**merged, **given})
    if problems:
        raise BadInput(problems)
    for group, parameter, value in _dotted_values(context.args, lambda flag: _hint(flag, context, merged)):
        base, flag = merged.get(group, settings()[group].default), f"--{group.replace('_', '-')}"
        if base is None:
            raise BadInput(f"{flag}.{parameter} {value}: of which {flag.strip('-')}? Give {flag} NAME too")
        try:
            choice = Choice.of(base)
        except ValueError as e:
            raise BadInput(f"{flag} {base}: {e}") from e
        merged[group] = Choice(choice.name, {**choice.params, parameter: value})
    return merged


def _hint(flag: str, context: typer.Context, merged: Mapping[str, Any]) -> str:
    """Return ' Did you mean x?' for an unknown flag: a parameter of what is chosen, a similar flag, or another's."""
    from ..config.components import PARAMETER_GROUPS, groups_with
    from ..config.other_names import suggestion
    from ..config.spec import settings

    params, name = context.command.params, flag.replace("-", "_")
    several = any(p.name == "method" and getattr(p, "multiple", False) for p in params)  # each with its own
    chosen = {g: merged.get(g, settings()[g].default) for g in PARAMETER_GROUPS}
    own, others = groups_with(name, {**chosen, "method": None} if several else chosen)
    ways = {g: f"--{g}.{name}".replace("_", "-") for g in own or others}
    if several and "method" in ways:
        ways["method"] = f"--method NAME:{name}=VALUE"
    like = None if own else suggestion(flag, [o.removeprefix("--") for p in params for o in p.opts])
    meant = ["" if like is None else repr(like), " or ".join(ways.values())]
    return f" Did you mean {', or '.join(m for m in meant if m)}?" if any(meant) else ""


def _dotted_values(extra: Sequence[str], hint: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """Return (group, parameter, value) for each `--group.parameter value` or `--group.parameter=value`.

    `hint` returns the advice on an unknown flag.
    """
    from ..config.components import REGISTRIES

    out, problems, rest = [], [], list(extra)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        group, dot, parameter = flag.removeprefix("--").replace("-", "_").partition(".")
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
            out.append((group, parameter, value if equals else rest.pop(0)))
    if problems:
        raise BadInput(problems)
    return out
