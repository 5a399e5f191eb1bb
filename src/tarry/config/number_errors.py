"""Errors of arithmetic that settings of extreme size cause: they become one BadInput that names these settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from ..core.errors import BadInput, TarryError, TrainingFailed, first_line
from .components import REGISTRIES, Choice
from .spec import Spec

__all__ = ["errors_of_extreme_numbers", "extreme_numbers"]

_LARGE, _SMALL = 1e6, 1e-12  # a number beyond these may be the cause of an error
_HARMLESS = ("seed", "updates", "rounds", "time")  # at any size
#: words of torch and numpy about numbers and sizes, for which they raise general types
_WORDS = ("overflow", "allocate memory", "not enough memory", "out of range", "too large", "too big", "out of bounds")


@contextmanager
def errors_of_extreme_numbers(spec: Spec) -> Iterator[None]:
    """Raise BadInput in place of an error of arithmetic or of memory, if the spec has numbers that may have caused it.

    Other errors pass: without such a number, they are bugs.
    """
    try:
        yield
    except Exception as e:
        if not _is_about_numbers(e) or not (found := extreme_numbers(spec)):
            raise
        flags = " ".join(f"--{name} {value}" for name, value in found.items())
        raise BadInput(
            f"{flags}: it cannot be computed with ({type(e).__name__}: {first_line(e)}); use a number nearer to the"
            " default"
        ) from e


def _is_about_numbers(e: Exception) -> bool:
    if isinstance(e, TarryError) and not isinstance(e, TrainingFailed):
        return False
    return isinstance(e, ArithmeticError | MemoryError) or any(words in str(e).lower() for words in _WORDS)


def extreme_numbers(spec: Spec) -> dict[str, Any]:
    """Return the numbers of a spec that are very large or very small, by flag."""
    given: dict[str, Any] = {}
    for field in fields(spec):
        value, flag = getattr(spec, field.name), field.name.replace("_", "-")
        if field.name in REGISTRIES:
            given |= {f"{flag}.{k}": v for k, v in value.params.items()} if isinstance(value, Choice) else {}
        elif value != field.default and field.name not in _HARMLESS:
            given[flag] = value
    return {flag: value for flag, value in given.items() if _is_extreme(value)}


def _is_extreme(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) >= _LARGE or 0 < abs(value) <= _SMALL
