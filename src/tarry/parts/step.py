"""Step parts: new global weights at t on a geodesic from the global weights W to an endpoint.

    add     t = η, to W + Δ          the displacement is trusted
    mix     t = β s(τ), to W_m       the position is trusted

The geodesic is a straight line by default (parts.manifold). The update's weight, from a correct part, scales t. Running
statistics go straight, at most to t = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Geodesic, Now
from ..core.parts import MixStep, Step
from ..core.tickets import Update
from ..vector.blocks import blocks
from ..vector.pool import empty_pooled
from .manifold import line, step_along, travel
from .staleness import Decay

__all__ = ["add", "mix", "mixed"]


def add(eta: float = 1.0, *, along: Geodesic = line) -> Step:
    """W ← W + η Δ."""
    if not eta > 0:
        raise BadInput(f"--method.eta {eta}: must be above 0")

    def apply(update: Update, state: None, now: Now) -> tuple[Tensor, None]:
        return step_along(along, now, eta * update.weight, update), state

    return Step(apply, with_geodesic=lambda geodesic: add(eta, along=geodesic))


def mix(beta: float, s: Decay, *, flag: str = "beta", along: Geodesic = line) -> Step:
    """W ← (1 − β_t) W + β_t W_m with β_t = β s(τ)."""
    if not 0 < beta <= 1:
        raise BadInput(f"--method.{flag} {beta}: must be above 0 and at most 1")

    def apply(update: Update, state: None, now: Now) -> tuple[Tensor, None]:
        t = beta * s(update.staleness) * update.weight
        if along is not line or t > 1 or update.endpoint is not None:
            return travel(along, now, update.local, t, update), state
        new = empty_pooled(now.weights)
        for w, sent, delta, out in blocks(now.weights, update.ticket.sent, update.delta, new):
            mixed(w, sent, delta, out, t)
        return new, state

    formula = MixStep(beta, s) if along is line else None
    return Step(apply, with_geodesic=lambda geodesic: mix(beta, s, flag=flag, along=geodesic), formula=formula)


def mixed(w: Tensor, sent: Tensor, delta: Tensor, out: Tensor, t: float) -> None:
    """out = w + t (sent + delta − w)."""
    torch.lerp(w, torch.add(sent, delta, out=out), t, out=out)
