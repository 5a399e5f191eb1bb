"""From an update to new global weights: some way along a geodesic from the global to where the update points.

    add     t = η, to W + Δ          the displacement is trusted
    mix     t = β s(τ), to W_m       the position is trusted

The geodesic is a straight line unless another is asked for (parts.manifold). A weight that a correct part gave an
update scales t. Running statistics go along, never further than the whole way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Geodesic, Now, Part
from ..core.tickets import Update
from ..vector.blocks import blocks
from ..vector.pool import empty_pooled
from .manifold import line, onward, travel
from .staleness import Decay

__all__ = ["add", "mix", "mixed"]


def add(eta: float = 1.0, *, along: Geodesic = line) -> Part[Update, Tensor]:
    """W ← W + η Δ."""
    if not eta > 0:
        raise BadInput(f"--method.eta {eta}: must be above 0")

    def apply(update: Update, state: None, now: Now) -> tuple[Tensor, None]:
        return onward(along, now, eta * update.weight, update), state

    return Part(apply, along=lambda geodesic: add(eta, along=geodesic))


def mix(beta: float, s: Decay, *, flag: str = "beta", along: Geodesic = line) -> Part[Update, Tensor]:
    """W ← (1 − β_t) W + β_t W_m with β_t = β s(τ)."""
    if not 0 < beta <= 1:
        raise BadInput(f"--method.{flag} {beta}: must be above 0 and at most 1")

    def apply(update: Update, state: None, now: Now) -> tuple[Tensor, None]:
        t = beta * s(update.staleness) * update.weight
        if along is not line or t > 1 or "local" in update.__dict__:
            return travel(along, now, update.local, t, update), state
        new = empty_pooled(now.weights)
        for w, sent, delta, out in blocks(now.weights, update.ticket.sent, update.delta, new):
            mixed(w, sent, delta, out, t)
        return new, state

    way = None if along is not line else ("mix", beta, s)
    return Part(apply, along=lambda geodesic: mix(beta, s, flag=flag, along=geodesic), formula=way)


def mixed(w: Tensor, sent: Tensor, delta: Tensor, out: Tensor, t: float) -> None:
    """out = w + t (sent + delta − w)."""
    torch.lerp(w, torch.add(sent, delta, out=out), t, out=out)
