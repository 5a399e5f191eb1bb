"""Times of events: sums of durations are rounded, so that 0.1 s added three times gives the same time as 0.3 s once."""

from __future__ import annotations

from math import inf, nextafter

__all__ = ["add_seconds"]

_DECIMALS = 9  # of a second; times that agree up to here belong to one instant


def add_seconds(time: float, seconds: float) -> float:
    """Return the rounded time that lies `seconds` after `time`; it is always later than `time`."""
    then = round(time + seconds, _DECIMALS)
    return then if then > time else max(time + seconds, nextafter(time, inf))
