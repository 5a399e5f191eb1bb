"""Search spaces of `tarry tune`: for each parameter a range or a list of values.

    0.001..1:log        Range(0.001, 1, log=True)         evenly spread on a logarithmic scale
    2..50:int           Range(2, 50, integer=True)
    0.001,0.01,0.1,1    OneOf(0.001, 0.01, 0.1, 1)

A method declares its space where it is registered; the parameters are those of its factory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite, log
from typing import Any

__all__ = ["Dimension", "OneOf", "Range", "parse_dimension"]

_FORMS = "LOW..HIGH, LOW..HIGH:log or LOW..HIGH:int"
_DIGITS = 3  # significant digits of a value that is drawn from a range
_EDGE = 0.05  # share of a range next to its end in which a value is at the edge


@dataclass(frozen=True)
class Range:
    """All numbers between two ends.

    >>> Range(0.001, 1, log=True).at(0.5)
    0.0316
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise ValueError(f"the range {self} needs a lower and a higher end")
        if self.log and self.low <= 0:
            raise ValueError(f"the range {self} is logarithmic, and its lower end is not above 0")

    def at(self, share: float) -> float | int:
        """Return the value at a share of the way from the lower to the higher end."""
        low, high = (log(self.low), log(self.high)) if self.log else (self.low, self.high)
        value = low + share * (high - low)
        return self.rounded(exp(value) if self.log else value)

    def rounded(self, value: float) -> float | int:
        """Return a whole number, or one of three digits, that is in the range."""
        if self.integer:
            return min(max(round(value), int(self.low)), int(self.high))
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)

    def levels(self, number: int) -> list[float | int]:
        """Return evenly spread values from end to end, or the middle."""
        shares = [i / (number - 1) for i in range(number)] if number > 1 else [0.5]
        return list(dict.fromkeys(self.at(share) for share in shares))

    @property
    def size(self) -> int | None:
        """The number of values; None if there are too many to count."""
        return int(self.high) - int(self.low) + 1 if self.integer else None

    def contains(self, value: Any) -> bool:
        """Return whether a value is in the range."""
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def edge(self, value: Any) -> str | None:
        """Return "lower" or "upper" for a value at an end of the range."""
        low, high, at = (log(self.low), log(self.high), log(value)) if self.log else (self.low, self.high, value)
        share = (at - low) / (high - low)
        return "lower" if share <= _EDGE else "upper" if share >= 1 - _EDGE else None

    def __str__(self) -> str:
        kinds = ":log" * self.log + ":int" * self.integer
        return f"{self.low:g}..{self.high:g}{kinds}"


@dataclass(frozen=True, init=False)
class OneOf:
    """A list of values.

    >>> OneOf(0.001, 0.01, 0.1, 1).at(0.4)
    0.01
    """

    values: tuple[Any, ...]

    def __init__(self, *values: Any):
        if not values or len(set(map(str, values))) < len(values):
            raise ValueError("a list of values needs at least one, and each of them once")
        object.__setattr__(self, "values", values)

    def at(self, share: float) -> Any:
        """Return the value at a share of the way through the list."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def levels(self, number: int) -> list[Any]:  # noqa: ARG002 - as for a range
        """Return all values."""
        return list(self.values)

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.values)

    def contains(self, value: Any) -> bool:
        """Return whether a value is in the list."""
        return value in self.values

    def edge(self, value: Any) -> str | None:
        """Return "lower" or "upper" for the least or the largest of more than two numbers."""
        if len(self.values) < 3 or not all(type(v) in (int, float) for v in self.values):
            return None
        return "lower" if value == min(self.values) else "upper" if value == max(self.values) else None

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Dimension = Range | OneOf


def parse_dimension(text: str) -> Dimension:
    """Return the range or the list that a text stands for; ValueError if it is neither.

    >>> parse_dimension("0.001..1:log"), parse_dimension("1,2")
    (Range(low=0.001, high=1.0, log=True, integer=False), OneOf(values=(1, 2)))
    """
    if ".." not in text:
        return OneOf(*(_value(part.strip()) for part in text.removesuffix(",").split(",")))
    ends, *kinds = text.split(":")
    low, _, high = ends.partition("..")
    if unknown := [kind for kind in kinds if kind not in ("log", "int")]:
        raise ValueError(
            f"a range is LOW..HIGH, LOW..HIGH:log or LOW..HIGH:int, and {unknown[0]!r} is neither log nor int"
        )
    try:
        return Range(float(low), float(high), log="log" in kinds, integer="int" in kinds)
    except ValueError as e:
        raise ValueError(f"a range is {_FORMS} ({e})") from e


def _value(text: str) -> Any:
    """Return a number or a switch that a text stands for, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
