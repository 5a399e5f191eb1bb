"""Search space of a method in a study: the client learning rate, and the parameters that the method declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...config.components import CROSSES, REGISTRIES, Choice
from ...config.grid import is_grid_setting
from ...config.spec import Spec, settings
from ...core.errors import BadInput, near
from ...core.parameter import Param
from ...core.registry import Entry
from ...core.search_space import Dimension, OneOf, Range, parse_dimension

__all__ = ["Space", "defaults", "learning_rates", "parse_space", "space_of"]

#: dimensions by setting (lr) or parameter (method.mu, local.rho)
Space = Mapping[str, Dimension]

_SGD, _ADAM = Range(1e-3, 1.0, log=True), Range(1e-5, 1e-2, log=True)
_GROUPS = ("method", *CROSSES)


def learning_rates(optimizer: str) -> Range:
    """Return the range of the client learning rate for an optimizer."""
    return _SGD if optimizer == "sgd" else _ADAM


def space_of(spec: Spec, changes: Space) -> dict[str, Dimension]:
    """Return the dimensions that are tuned for the method of a spec; parameters that it was given are fixed."""
    space: dict[str, Dimension] = {"lr": learning_rates(spec.optimizer)}
    for group in _GROUPS:
        if (choice := _choice(spec, group)) is not None and choice.entry is not None:
            _check_names(group, choice.entry)
            found = {**choice.entry.space, **_changes_of(group, choice, changes)}
            space |= {f"{group}.{name}": d for name, d in found.items() if name not in choice.params}
    return space | {name: d for name, d in changes.items() if "." not in name}


def _check_names(group: str, entry: Entry[Any]) -> None:
    known = [p.name for p in entry.params]
    if unknown := [name for name in entry.space if name not in known]:
        raise BadInput(f"--{group} {entry.name}: its search space names {unknown[0]!r}.{near(unknown[0], known)}")


def _choice(spec: Spec, group: str) -> Choice | None:
    value = getattr(spec, group)
    return value.with_entry(group) if isinstance(value, Choice) else None


def _changes_of(group: str, choice: Choice, changes: Space) -> dict[str, Dimension]:
    """Return the changes of parameters that the component has, by parameter."""
    assert choice.entry is not None
    known = {p.name for p in choice.entry.params}
    named = {name.partition(".")[2]: d for name, d in changes.items() if name.partition(".")[0] == group}
    return {name: d for name, d in named.items() if name in known}


def defaults(spec: Spec, space: Space) -> dict[str, Any]:
    """Return the values that the dimensions have without tuning, where these are in the space."""
    out: dict[str, Any] = {}
    for name, dimension in space.items():
        group, dot, parameter = name.partition(".")
        if dot:
            choice = _choice(spec, group)
            params = choice.entry.params if choice is not None and choice.entry is not None else ()
            value = next((p.default for p in params if p.name == parameter), None)
        else:
            value = getattr(spec, name)
        if dimension.contains(value):
            out[name] = value
    return out


def parse_space(given: Mapping[str, Any], specs: Sequence[Spec]) -> dict[str, Dimension]:
    """Return dimensions by name, from texts, lists or dimensions; raise BadInput for those that fit no method."""
    changes, problems = dict[str, Dimension](), list[str]()
    for name, value in given.items():
        flag = f"--space {name}={_text(value)}"
        params = _params_of(name, specs)
        if not params:
            problems.append(f"{flag}: {_why_unknown(name, specs)}")
            continue
        try:
            changes[name] = _typed(_dimension(value), params[0])
        except ValueError as e:
            problems.append(f"{flag}: {e}")
    if problems:
        raise BadInput(problems)
    return changes


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _dimension(value: Any) -> Dimension:
    if isinstance(value, Range | OneOf):
        return value
    return OneOf(*value) if isinstance(value, list | tuple) else parse_dimension(str(value))


def _params_of(name: str, specs: Sequence[Spec]) -> list[Param]:
    """Return the setting of that name, or the parameters of that name of the components."""
    group, dot, parameter = name.partition(".")
    if not dot:
        known = settings()
        return [known[name]] if name in known and is_grid_setting(known[name]) else []
    if group not in _GROUPS:
        return []
    found = [choice for spec in specs if (choice := _choice(spec, group)) is not None and choice.entry is not None]
    return [p for choice in found if choice.entry is not None for p in choice.entry.params if p.name == parameter]


def _why_unknown(name: str, specs: Sequence[Spec]) -> str:
    group, dot, parameter = name.partition(".")
    if dot and group in _GROUPS:
        entries = [REGISTRIES[group].find(c.name) for s in specs if (c := _choice(s, group)) is not None]
        known = sorted({p.name for entry in entries for p in entry.params})
        return (
            f"no {group} here has a parameter {parameter!r}.{near(parameter, known)}"
            if known
            else f"there is no {group}"
        )
    return "name a number or a choice that is a setting (lr), or a parameter of a method (method.mu)"


def _typed(dimension: Dimension, param: Param) -> Dimension:
    """Return the dimension with values of the parameter's type; ValueError if they do not fit."""
    if isinstance(dimension, OneOf):
        return OneOf(*(param.parse(value) for value in dimension.values))
    if not dimension.integer and not isinstance(param.parse(dimension.low), float):
        return _typed(Range(dimension.low, dimension.high, dimension.log, integer=True), param)
    for end in (dimension.low, dimension.high):
        param.parse(int(end) if dimension.integer else end)
    return dimension
