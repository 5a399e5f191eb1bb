"""A parameter of a factory: its name, type, default and help, read off the signature.

    def fedbuff(*, buffer: Annotated[int, "number of updates in a step"] = 10) -> Method: ...

A parameter is int, float, bool, str, a Literal, or one of these or None; its help is the Annotated string. One without
a type is of its default's.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import numpy as np

from .one_line import short_text

__all__ = ["LARGEST_FLOAT", "LARGEST_INT", "AtMost", "Param", "params_of", "several_values"]

_REQUIRED = inspect.Parameter.empty
#: the limits of parameters: floats that float32 can hold, with room for a product, and counts that fit 32 bits
LARGEST_FLOAT, LARGEST_INT = 1e38, 2**31 - 1


@dataclass(frozen=True)
class AtMost:
    """Another limit on the size of an integer: `Annotated[int, "help", AtMost(2**63 - 1)]`."""

    size: int


@dataclass(frozen=True)
class Param:
    """One parameter of a factory: its name, type, default and help."""

    name: str
    type: Any
    default: Any
    help: str
    largest_int: int = LARGEST_INT

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED

    @property
    def type_name(self) -> str:
        return " | ".join(_type_name(t) for t in _alternatives(self.type))

    @property
    def is_number_or_choice(self) -> bool:
        """Return whether the values are numbers, switches or names of a fixed set, or none."""
        kinds = _alternatives(self.type)
        return all(k in (int, float, bool, type(None)) or typing.get_origin(k) is Literal for k in kinds)

    def parse(self, value: Any) -> Any:
        """Return the value as this parameter's type: text is parsed, anything else checked; ValueError if wrong."""
        value = value.item() if isinstance(value, np.generic) else value
        for kind in _alternatives(self.type):
            try:
                read = _as(kind, value)
            except ValueError:
                continue
            if not isinstance(read, float) or isfinite(read):
                return self._within_limits(read)
        if self.type is object:
            raise ValueError(f"its factory does not say what it is; write a type there, as in `{self.name}: float`")
        several = self.is_number_or_choice and several_values(value) is not None
        grid = "; a run has one value, and `tarry compare` runs a grid of several" if several else ""
        given = short_text(repr(value) if isinstance(value, str) else value)
        raise ValueError(f"wants {self.type_name}, got {given}{grid}")

    def _within_limits(self, read: Any) -> Any:
        if isinstance(read, float) and abs(read) > LARGEST_FLOAT:
            raise ValueError(f"must be between {-LARGEST_FLOAT:g} and {LARGEST_FLOAT:g}")
        if isinstance(read, int) and abs(read) > self.largest_int:
            raise ValueError(f"must be between {-self.largest_int} and {self.largest_int}")
        return read


def several_values(value: Any) -> list[Any] | None:
    """Return the values that a text with commas, a list or a range holds; None for a single value."""
    if isinstance(value, str):
        return [part.strip() for part in value.removesuffix(",").split(",")] if "," in value else None
    if isinstance(value, list | tuple | range | np.ndarray):
        return list(value)
    return None


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " | ".join(str(a) for a in typing.get_args(kind))
    if typing.get_origin(kind) in (list, tuple, Sequence):
        return "list"
    return "none" if kind is type(None) else str(getattr(kind, "__name__", kind))


def _as(kind: Any, value: Any) -> Any:
    text = value.strip().lower() if isinstance(value, str) else None
    if typing.get_origin(kind) is Literal:
        for option in typing.get_args(kind):
            if value == option or text == str(option).lower():
                return option
    elif kind is type(None):
        if value is None or text in ("none", "null", ""):
            return None
    elif kind is bool:
        if isinstance(value, bool):
            return value
        if text in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return text in ("true", "yes", "on", "1")
    elif kind is int:
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return int(value)
    elif kind is float:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise ValueError(value) from None
    elif kind is str:
        if isinstance(value, str):
            return value
    elif kind is object:
        if text is None:
            return value  # of no declared type; text could mean anything
    elif isinstance(value, list | tuple):
        return value
    elif isinstance(value, str):
        try:
            if isinstance(read := json.loads(value), list):
                return read
        except (ValueError, RecursionError):
            pass
    raise ValueError(value)


def _hint(p: inspect.Parameter, names: dict[str, Any]) -> Any:
    """Return the type of a parameter; annotations that only type checkers can import are skipped.

    Without an annotation it is the type of the default; an integer default allows any number.
    """
    if isinstance(p.annotation, str):
        with suppress(NameError):
            return eval(p.annotation, names)  # the factory's own module wrote it
    elif p.annotation is not inspect.Parameter.empty:
        return p.annotation
    kind = type(p.default)
    return int | float if kind is int else kind if kind in (bool, float, str) else object


def params_of(factory: Callable[..., Any]) -> tuple[Param, ...]:
    """Return the parameters of a factory."""
    names = getattr(inspect.unwrap(factory), "__globals__", {})
    out = []
    for p in inspect.signature(factory).parameters.values():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        hint, text, largest = _hint(p, names), "", LARGEST_INT
        if typing.get_origin(hint) is typing.Annotated:
            hint, *notes = typing.get_args(hint)
            text = next((n for n in notes if isinstance(n, str)), "")
            largest = next((n.size for n in notes if isinstance(n, AtMost)), LARGEST_INT)
        out.append(Param(p.name, hint, p.default, text, largest))
    return tuple(out)
