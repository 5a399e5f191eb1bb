"""Step parts: new global weights at t on a geodesic from the global weights W to an endpoint.

    add     t = η, to W + Δ          the displacement is trusted
    mix     t = β s(τ), to W_m       the position is trusted

η is a learning rate, and may have a schedule; β is a share of the way.

The geodesic is a straight line by default (parts.manifold). The update's weight, from a correct part, scales t. Running
statistics go straight, at most to t = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.method import Geodesic, ServerView
from ..core.parts import MixStep, Step
from ..core.schedule import RateSchedule
from ..core.tickets import Update
from ..vector.blocks import blocks
from ..vector.pool import empty_pooled
from .checks import above, check, share
from .manifold import line, step_along, travel
from .staleness import Decay

__all__ = ["add", "mix", "mix_vectors", "scheduled"]


def add(eta: float = 1.0, *, along: Geodesic = line, schedule: RateSchedule | None = None) -> Step:
    """W ← W + η Δ."""
    check(above(0, eta=eta))

    def apply(update: Update, state: None, view: ServerView) -> tuple[Tensor, None]:
        return step_along(along, view, scheduled(eta, schedule, view) * update.weight, update), state

    return Step(
        apply,
        with_geodesic=lambda geodesic: add(eta, along=geodesic, schedule=schedule),
        with_schedule=lambda schedule: add(eta, along=along, schedule=schedule),
    )


def scheduled(eta: float, schedule: RateSchedule | None, view: ServerView) -> float:
    """Return η, times the factor of its schedule if it has one."""
    return eta if schedule is None else eta * schedule(view.schedule_input)


def mix(beta: float, s: Decay, *, flag: str = "beta", along: Geodesic = line) -> Step:
    """W ← (1 − β_t) W + β_t W_m with β_t = β s(τ)."""
    check(share(**{flag: beta}))

    def apply(update: Update, state: None, view: ServerView) -> tuple[Tensor, None]:
        t = beta * s(update.staleness) * update.weight
        if along is not line or t > 1 or update.endpoint is not None:
            return travel(along, view, update.local, t, update), state
        new = empty_pooled(view.weights)
        for w, sent, delta, out in blocks(view.weights, update.ticket.sent, update.delta, new):
            mix_vectors(w, sent, delta, out, t)
        return new, state

    formula = MixStep(beta, s) if along is line else None
    return Step(apply, with_geodesic=lambda geodesic: mix(beta, s, flag=flag, along=geodesic), formula=formula)


def mix_vectors(w: Tensor, sent: Tensor, delta: Tensor, out: Tensor, t: float) -> None:
    """out = w + t (sent + delta − w)."""
    torch.lerp(w, torch.add(sent, delta, out=out), t, out=out)
