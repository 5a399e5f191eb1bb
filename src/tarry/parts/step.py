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
from ..core.ticket import Update
from .manifold import line, travel
from .staleness import Decay

__all__ = ["add", "mix"]


def add(eta: float = 1.0, *, along: Geodesic = line) -> Part[Update, Tensor]:
    """W ← W + η Δ."""
    if not eta > 0:
        raise BadInput(f"--method.eta {eta}: must be above 0")

    def apply(update: Update, state: None, now: Now) -> tuple[Tensor, None]:
        t, moved, n = eta * update.weight, now.moved(update), now.layout.n_params
        if along is not line:
            return travel(along, now, now.weights + moved, t, update), state
        new = torch.add(now.weights, moved, alpha=t)
        if t > 1:
            torch.add(now.weights[n:], moved[n:], out=new[n:])
        return new, state

    return Part(apply, along=lambda geodesic: add(eta, along=geodesic))


def mix(beta: float, s: Decay, *, flag: str = "beta", along: Geodesic = line) -> Part[Update, Tensor]:
    """W ← (1 − β_t) W + β_t W_m with β_t = β s(τ)."""
    if not 0 < beta <= 1:
        raise BadInput(f"--method.{flag} {beta}: must be above 0 and at most 1")

    def apply(update: Update, state: None, now: Now) -> tuple[Tensor, None]:
        t = beta * s(update.staleness) * update.weight
        return travel(along, now, update.local, t, update), state

    way = None if along is not line else ("mix", beta, s)
    return Part(apply, along=lambda geodesic: mix(beta, s, flag=flag, along=geodesic), formula=way)
