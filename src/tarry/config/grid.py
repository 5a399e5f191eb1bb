"""Grids: settings with several values stand for every combination of them.

    {"lr": "0.1,0.05", "epochs": [1, 5]}            4 combinations, with the axes lr and epochs
    {"partition": {"name": "dirichlet", "alpha": "0.1,1"}}            2 combinations, with the axis partition.alpha

A number or a choice may have several values, as text with commas or as a list; also as a parameter of the task, the
partition or the delay. A method whose parameter has several values stands for several methods, which have labels of
their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from ..core.errors import BadInput
from ..core.labels import axis_text
from ..core.one_line import short_text
from ..core.parameter import Param, several_values
from ..record.digests import EXECUTION_SETTINGS
from .components import REGISTRIES, Choice
from .spec import settings

__all__ = ["MOST_RUNS", "expand_grid", "expand_methods", "is_grid_setting", "with_values"]

MOST_RUNS = 10_000  # runs of one comparison
_GROUPS = ("task", "partition", "delay", "unlabeled")


def is_grid_setting(param: Param) -> bool:
    """Return whether a setting can be an axis: a number or a choice that changes results."""
    return param.is_number_or_choice and param.name not in (*EXECUTION_SETTINGS, "seed")


def expand_grid(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of every combination; each names its axes. Without several values it is the settings."""
    axes = dict(_axes(given))
    if not axes:
        return [dict(given)]
    if (size := prod(map(len, axes.values()))) > MOST_RUNS:
        flags = " × ".join(f"--{name.replace('_', '-')} ({len(values):,} values)" for name, values in axes.items())
        raise BadInput(f"{flags}: {size:,} combinations, and a comparison has at most {MOST_RUNS:,} runs; name fewer")
    names = [*filter(None, str(given.get("axes") or "").split(",")), *axes]
    shared = {**given, "axes": ",".join(dict.fromkeys(names))}
    return [with_values(shared, dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def expand_methods(methods: Iterable[Any]) -> list[Any]:
    """Return the methods; one with several values of a parameter becomes one for each combination."""
    out = list[Any]()
    for method in methods:
        axes = dict(_component_axes("method", method)) if isinstance(method, Mapping | Choice) else {}
        if (size := len(out) + prod(map(len, axes.values()))) > MOST_RUNS:
            raise BadInput(f"--method {Choice.of(method).name}: it stands for {size:,} methods; name fewer values")
        points = product(*axes.values()) if axes else ()
        out += [with_values({"method": method}, dict(zip(axes, values, strict=True)))["method"] for values in points]
        out += [] if axes else [method]
    return out


def _axes(given: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the settings, and parameters of components, that have several values."""
    known = settings()
    for name, value in given.items():
        if name in known and is_grid_setting(known[name]) and (found := several_values(value)) is not None:
            yield name, _checked(name, found, known[name])
        elif name in _GROUPS and isinstance(value, Mapping | Choice):
            yield from _component_axes(name, value)


def _component_axes(group: str, value: Mapping[str, Any] | Choice) -> Iterator[tuple[str, list[Any]]]:
    """Yield the parameters of a component that have several values."""
    try:
        choice = Choice.of(value)
        params = {p.name: p for p in REGISTRIES[group].find(choice.name).params}
    except ValueError:  # a wrong table or an unknown name is reported by Spec
        return
    for name, item in choice.params.items():
        several = several_values(item) if name in params and params[name].is_number_or_choice else None
        if several is not None:
            yield f"{group}.{name}", _checked(f"{group}.{name}", several, params[name])


def _checked(axis: str, values: Iterable[Any], param: Param) -> list[Any]:
    """Return the values as their type; raise BadInput for a wrong one and for one that is there twice."""
    parsed, flag = list[Any](), f"--{axis.replace('_', '-')}"
    for value in values:
        try:
            parsed.append(param.parse(value))
        except ValueError as e:
            raise BadInput(f"{flag} {short_text(value)}: {e}") from e
    if not parsed:
        raise BadInput(f"{flag}: it has no value; name at least one")
    texts = [axis_text(value) for value in parsed]
    if twice := next((text for i, text in enumerate(texts) if text in texts[:i]), None):
        raise BadInput(f"{flag} {','.join(texts)}: {twice} is there twice; name it once")
    return parsed


def with_values(shared: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with these values of settings (lr) and of parameters of components (method.mu)."""
    point = dict(shared)
    for axis, value in values.items():
        group, dot, parameter = axis.partition(".")
        if dot:
            choice = Choice.of(point[group])
            point[group] = Choice(choice.name, {**choice.params, parameter: value})
        else:
            point[axis] = value
    return point
