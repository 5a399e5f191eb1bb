"""Shapes of JSON documents: what a reader expects of each value, compared before anything of the document is used.

    SHAPE = fields({"updates": count, "curve": list_of(row(number, count))}, {"target": optional(number)})
    read_record(path, SHAPE)        DamagedFile("PATH cannot be read: curve[3][1] is 'x', not a whole number from 0 on")

A shape is a function of a value and its place in the document. It raises `Misfit` where the value is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from ..core.errors import DamagedFile
from ..core.one_line import short_text
from .storage import JSON_LIMIT, read_json

__all__ = [
    "Misfit",
    "Shape",
    "anything",
    "between",
    "check_shape",
    "count",
    "either",
    "fields",
    "flag",
    "is_whole_key",
    "list_of",
    "number",
    "optional",
    "read_record",
    "row",
    "seconds",
    "table_of",
    "text",
    "whole",
]

Shape = Callable[[Any, str], None]
_LARGEST = 2**63


class Misfit(Exception):
    """A value of a document that is not of its shape."""


def read_record(path: Path, shape: Shape, limit: int = JSON_LIMIT) -> Any:
    """Return a JSON document of a shape from a regular file of at most `limit` bytes."""
    document = read_json(path, limit)
    check_shape(path, document, shape)
    return document


def check_shape(path: Path, document: Any, shape: Shape) -> None:
    """Raise DamagedFile if a document is not of a shape."""
    try:
        shape(document, "")
    except Misfit as e:
        raise DamagedFile(f"{path} cannot be read: {e}") from e


def _reject(value: Any, place: str, wanted: str) -> NoReturn:
    raise Misfit(f"{place.lstrip('.') or 'it'} is {short_text(value)!r}, not {wanted}")


def anything(value: Any, place: str) -> None:
    """Fit every value."""


def text(value: Any, place: str) -> None:
    """Fit a text."""
    if not isinstance(value, str):
        _reject(value, place, "a text")


def flag(value: Any, place: str) -> None:
    """Fit true and false."""
    if not isinstance(value, bool):
        _reject(value, place, "true or false")


def whole(value: Any, place: str) -> None:
    """Fit a whole number of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -_LARGEST <= value < 2 * _LARGEST:
        _reject(value, place, "a whole number of 64 bits")


def count(value: Any, place: str) -> None:
    """Fit a whole number from 0 on."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        _reject(value, place, "a whole number from 0 on")


def between(low: int, high: int) -> Shape:
    """Fit a whole number from `low` to `high`."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            _reject(value, place, f"a whole number from {low} to {high}")

    return check


def number(value: Any, place: str) -> None:
    """Fit a finite number."""
    if isinstance(value, float):
        if isfinite(value):
            return
    elif isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value < 2 * _LARGEST:
        return
    _reject(value, place, "a finite number")


def seconds(value: Any, place: str) -> None:
    """Fit a finite number from 0 on."""
    number(value, place)
    if value < 0:
        _reject(value, place, "0 or more")


def optional(shape: Shape) -> Shape:
    """Fit null, and what fits the shape."""

    def check(value: Any, place: str) -> None:
        if value is not None:
            shape(value, place)

    return check


def either(*shapes: Shape) -> Shape:
    """Fit what fits one of the shapes; the error is that of the last."""

    def check(value: Any, place: str) -> None:
        for shape in shapes[:-1]:
            try:
                return shape(value, place)
            except Misfit:
                continue
        return shapes[-1](value, place)

    return check


def list_of(shape: Shape) -> Shape:
    """Fit a list of values that fit the shape."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list):
            _reject(value, place, "a list")
        for i, item in enumerate(value):
            shape(item, f"{place}[{i}]")

    return check


def row(*shapes: Shape) -> Shape:
    """Fit a list with one value for each of the shapes."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list) or len(value) != len(shapes):
            _reject(value, place, f"a list of {len(shapes)} values")
        for i, (shape, item) in enumerate(zip(shapes, value, strict=True)):
            shape(item, f"{place}[{i}]")

    return check


def table_of(shape: Shape, key: Callable[[str], bool] | None = None) -> Shape:
    """Fit a table of values that fit the shape, under keys that `key` accepts."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            _reject(value, place, "a table")
        for name, item in value.items():
            if key is not None and not key(name):
                raise Misfit(f"{place.lstrip('.') or 'it'} has the key {short_text(name)!r}")
            shape(item, f"{place}.{short_text(name)}")

    return check


def is_whole_key(name: str) -> bool:
    """Return whether a key of a table is a whole number of at most 18 digits, as that of a client or a seed."""
    return name.isascii() and name.isdigit() and len(name) <= 18


def fields(required: Mapping[str, Shape], others: Mapping[str, Shape] | None = None, *, closed: bool = False) -> Shape:
    """Fit a table that has the required fields; `others` may be absent. A `closed` table has no further ones."""
    shapes = {**required, **(others or {})}

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            _reject(value, place, "a table")
        for name in required:
            if name not in value:
                raise Misfit(f"{f'{place}.{name}'.lstrip('.')} is missing")
        for name, item in value.items():
            if name in shapes:
                shapes[name](item, f"{place}.{name}")
            elif closed:
                raise Misfit(f"{place.lstrip('.') or 'it'} has a field {short_text(name)!r} that is unknown here")

    return check
