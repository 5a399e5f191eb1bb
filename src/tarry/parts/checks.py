"""Checks of a method's parameters: one error names all that are out of range. None is never out of range.

check(above(0, mu=mu, c=c), between(0, 1, share=share))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from ..core.errors import BadInput

__all__ = ["above", "at_least", "between", "check", "decay", "finite", "share"]

Values = Mapping[str, float | None]


def check(*problems: Sequence[str]) -> None:
    """Raise BadInput if there are any problems."""
    if found := [problem for group in problems for problem in group]:
        raise BadInput(found)


def above(limit: int, /, **values: float | None) -> list[str]:
    """Return a problem for each value that is not above the limit."""
    return _problems(values, f"above {limit}", lambda x: x > limit)


def at_least(least: int, /, **values: float | None) -> list[str]:
    """Return a problem for each value below `least`."""
    return _problems(values, f"{least} or more", lambda x: x >= least)


def between(low: int, high: int, /, **values: float | None) -> list[str]:
    """Return a problem for each value below `low` or above `high`."""
    return _problems(values, f"between {low} and {high}", lambda x: low <= x <= high)


def decay(**values: float | None) -> list[str]:
    """Return a problem for each value that is not in [0, 1)."""
    return _problems(values, "in [0, 1)", lambda x: 0 <= x < 1)


def finite(**values: float | None) -> list[str]:
    """Return a problem for each value that is infinite or no number."""
    return _problems(values, "finite", isfinite)


def share(**values: float | None) -> list[str]:
    """Return a problem for each value that is not in (0, 1]."""
    return _problems(values, "above 0 and at most 1", lambda x: 0 < x <= 1)


def _problems(values: Values, rule: str, holds: Callable[[float], bool]) -> list[str]:
    return [
        f"--method.{name} {value}: must be {rule}"
        for name, value in values.items()
        if value is not None and not holds(value)
    ]
