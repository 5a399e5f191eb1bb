"""Instants of a clock: sums of durations are rounded, so that 0.1 s three times is the instant of 0.3 s once."""

from __future__ import annotations

from math import inf, nextafter

__all__ = ["after"]

_DECIMALS = 9  # of a second: what is closer than that is of one instant


def after(time: float, seconds: float) -> float:
    """The instant so many seconds after another, and never the same one."""
    then = round(time + seconds, _DECIMALS)
    return then if then > time else max(time + seconds, nextafter(time, inf))
