"""Weights of updates by their staleness τ (server steps since hand-out, 0 = fresh)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import BadInput
from ..core.method import ServerView
from ..core.parts import Correct
from ..core.tickets import Update
from .checks import at_least, check

__all__ = ["Decay", "constant", "discount", "hinge", "polynomial"]

Decay = Callable[[int], float]


def constant() -> Decay:
    """s(τ) = 1."""
    return lambda _: 1.0


@dataclass(frozen=True)
class Polynomial:
    """s(τ) = (τ + 1)^(−a); two of them are equal if their a is."""

    a: float

    def __call__(self, tau: int) -> float:
        return float((tau + 1) ** -self.a)


def polynomial(a: float) -> Decay:
    """s(τ) = (τ + 1)^(−a)."""
    check(at_least(0, a=a))
    return Polynomial(a)


def hinge(a: float, b: float) -> Decay:
    """s(τ) = 1 while τ ≤ b, then 1 / (a (τ − b) + 1)."""
    if not (a >= 0 and b >= 0):
        raise BadInput(f"--method.a {a} --method.b {b}: must be 0 or more")
    return lambda tau: 1.0 if tau <= b else 1.0 / (a * (tau - b) + 1.0)


def discount(s: Decay) -> Correct:
    """Return a correct part that multiplies the update's weight by s(τ)."""

    def apply(update: Update, state: None, _: ServerView) -> tuple[Update, None]:
        return update.replace(weight=update.weight * s(update.staleness)), state

    return Correct(apply, only_scales=True)
