"""Randomness as a pure function of a key: no generator is carried around, so call order never matters.

A key is a 64-bit number made from (seed, stream, counters...) by `key`; everything drawn from it is a function of
it alone. The mixing function is SplitMix64's finaliser (Steele, Lea, Flood 2014), which numpy and torch can both
compute in 64-bit integers, so a permutation drawn on any device is the same permutation.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

__all__ = [
    "GOLDEN",
    "Stream",
    "below",
    "extend",
    "generator",
    "key",
    "normal",
    "permutation",
    "uniform",
    "uniforms",
    "visit_keys",
]

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
_inverse_normal = NormalDist().inv_cdf


class Stream(IntEnum):
    """The use of a key; two streams never share numbers."""

    INIT = 1  # the model's first weights
    PARTITION = 2  # who holds which examples
    FLEET = 3  # which latency profile a client has
    DELAY = 4  # how long one visit takes
    FAILURE = 5  # whether a visit is lost
    DISPATCH = 6  # whom the server picks
    ORDER = 7  # a client's sample order
    LOCAL = 8  # noise in local training
    DATA = 9  # splits and synthetic data
    DROPOUT = 10  # which units a step leaves out
    VALIDATION = 11  # which training examples are for validation


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def key(seed: int, *parts: int) -> int:
    """A 64-bit key from a seed and any number of counters; every argument and its place matter."""
    k = _mix((seed + GOLDEN) & _MASK)
    for part in parts:
        k = extend(k, part)
    return k


def extend(k: int, part: int) -> int:
    """key(..., part) from key(...): for loops whose first parts stay the same."""
    z = (k + part * GOLDEN + GOLDEN) & _MASK  # _mix written out: this is the event loop's innermost call
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def visit_keys(seed: int, stream: int) -> Callable[[int, int], int]:
    """Return (client, visit) → key(seed, stream, client, visit), in half the time: seed and stream are mixed once."""
    base = key(seed, stream)
    return lambda client, visit: extend(extend(base, client), visit)


def uniform(k: int) -> float:
    """The one number strictly between 0 and 1 of a key; a key is good for one draw."""
    return ((k >> 12) + 0.5) * 2.0**-52


def normal(k: int) -> float:
    """The one standard normal number of a key."""
    return _inverse_normal(uniform(k))


def below(k: int, n: int) -> int:
    """The one whole number in 0 … n−1 of a key (n is far below 2^64, so the multiply-shift bias is negligible)."""
    return (k * n) >> 64


def permutation(k: int, n: int) -> npt.NDArray[np.int64]:
    """A permutation of 0 … n−1: the order of n distinct mixed counters, so every way to sort gives the same."""
    return np.argsort(_mixed_counters(k, n))


def uniforms(k: int, n: int, width: int) -> npt.NDArray[np.float32]:
    """n rows of numbers in [0, 1), each a whole multiple of 2⁻²⁴."""
    drawn = (_mixed_counters(k, n * width) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return drawn.reshape(n, width)


def _mixed_counters(k: int, n: int) -> npt.NDArray[np.uint64]:
    """n mixed counters."""
    z = np.arange(n, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(k)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def generator(k: int) -> np.random.Generator:
    """A numpy generator for set-up work (partitions, profiles); never in the event loop."""
    return np.random.Generator(np.random.Philox(key=k))
