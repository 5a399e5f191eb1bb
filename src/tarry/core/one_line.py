"""One-line representations of records: their fields that are not the default, tensors by shape, functions by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor

__all__ = ["WIDTH", "cut_to_width", "function_name", "one_line", "short_text"]

WIDTH = 118  # characters


def one_line(record: Any, **first: Any) -> str:
    """Return the class of a record, `first`, and its fields that are not the default, tensors last."""
    changed = [(name, value) for name, value, default in _fields(record) if not _equal(value, default)]
    changed.sort(key=lambda field: isinstance(field[1], Tensor | tuple))
    shown = ", ".join(f"{name}={_short(value)}" for name, value in (*first.items(), *changed))
    return cut_to_width(f"{type(record).__name__}({shown})")


def cut_to_width(text: str) -> str:
    """Return the text, cut at WIDTH characters."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3].rstrip()}..."


def short_text(value: Any) -> str:
    """Return a value that was given as text of at most 80 characters; an integer of thousands of digits has no text."""
    try:
        text = str(value)
    except ValueError:
        return f"an integer of {value.bit_length():,} bits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, of the factory that made it, or of the class whose method it is."""
    owner = function.__self__ if isinstance(function, MethodType) else function
    if isinstance(owner, partial):
        return function_name(owner.func)
    return getattr(owner, "__qualname__", type(owner).__name__).partition(".")[0].lstrip("_")


def _fields(record: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, value, default) of each field that is part of the repr."""
    if is_dataclass(record):
        yield from ((f.name, getattr(record, f.name), f.default) for f in fields(record) if f.repr)
    else:
        yield from ((name, getattr(record, name), record._field_defaults.get(name, MISSING)) for name in record._fields)


def _equal(value: Any, default: Any) -> bool:
    plain = isinstance(value, int | float | str | frozenset)
    return value is default or (plain and type(value) is type(default) and value == default)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor[{', '.join(map(str, value.shape))}]" if value.ndim else f"{value.item():g}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_short(item)}' for key, item in value.items())}}}"
    return function_name(value) if callable(value) and not is_dataclass(value) else repr(value)
