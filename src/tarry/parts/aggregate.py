"""When the server has enough to take a step: at each arrival (the default), after K, or when a round is complete.

What is passed on stands for several clients: its ticket is written at the global weights of the moment. Extras that are
carried (`carries`) are averaged like the displacements; other extras are lost.

For aggregates of one's own: nothing_yet(weights) → state, gather(state, update, now, mass) → state, pooled(state, now).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Now, Part
from ..core.tickets import NOTHING, Ticket, Update
from ..vector.blocks import blocks, large
from ..vector.fused import as_scalar, combined, kernels_for, partition
from ..vector.pool import empty_pooled
from .manifold import CONTROL

__all__ = ["Weighting", "buffer", "gather", "nothing_yet", "pooled", "round_mean"]

Aggregate = Part[Update | None, Update | None]
Weighting = Literal["examples", "uniform"]
_CARRIED = frozenset({CONTROL})  # the mean of curves from one point is the curve of the means


def buffer(size: int, *, carries: frozenset[str] = _CARRIED) -> Aggregate:
    """Collect `size` updates, then pass on (1/size) Σ weight_k Δ_k."""
    if size < 1:
        raise BadInput(f"--method.buffer {size}: must be 1 or more")

    def apply(update: Update | None, state: dict[str, Any], now: Now) -> tuple[Update | None, dict[str, Any]]:
        if update is None:
            return None, state
        last = state["count"] + 1 == size
        state = gather(state, update, now, 1.0, carries=carries, last=last)
        return (pooled(state, now), nothing_yet(now.weights)) if last else (None, state)

    return Part(apply, nothing_yet)


def round_mean(weighting: Weighting = "examples", *, carries: frozenset[str] = _CARRIED) -> Aggregate:
    """Wait until nobody is training any more, then pass on Σ (n_k/n) Δ_k over those who came (or their plain mean).

    A weight that an update was given scales its Δ_k.
    """

    def apply(update: Update | None, state: dict[str, Any], now: Now) -> tuple[Update | None, dict[str, Any]]:
        if update is not None:
            mass = update.n_examples if weighting == "examples" else 1
            state = gather(state, update, now, mass, carries=carries, last=not now.in_flight)
        if now.in_flight or not state["count"]:
            return None, state
        return pooled(state, now), nothing_yet(now.weights)

    return Part(apply, nothing_yet)


def nothing_yet(weights: Tensor) -> dict[str, Any]:
    """The sums before the first update; that of the displacements is a number until there is one."""
    return {"sum": weights.new_zeros(()), "extras": {}, "mass": 0.0, "count": 0, "examples": 0, "steps": 0}


def gather(
    state: dict[str, Any],
    update: Update,
    now: Now,
    mass: float,
    *,
    carries: frozenset[str] = _CARRIED,
    last: bool = False,
) -> dict[str, Any]:
    """The sums with one update more: mass · weight · Δ, and so its carried extras.

    `last`: nothing more comes before they are passed on. They are made means while they are at hand.
    """
    scale, extras, moved = mass * update.weight, dict(state["extras"]), now.moved(update)
    for name in update.extras.keys() & carries:
        extra = update.extras[name]
        extras[name] = torch.add(extras[name], extra, alpha=scale) if name in extras else extra * scale
    mass, total = state["mass"] + mass, state["sum"]
    return {
        "sum": _averaged(total, moved, scale, mass) if last else _added(total, moved, scale),
        "extras": {name: extra / mass for name, extra in extras.items()} if last else extras,
        "mass": 1.0 if last else mass,
        "count": state["count"] + 1,
        "examples": state["examples"] + update.n_examples,
        "steps": state["steps"] + update.n_steps,
    }


def _added(total: Tensor, new: Tensor, scale: float) -> Tensor:
    out = empty_pooled(new)
    if total.ndim and large(new):
        return combined(total, new, scale, out=out)
    return torch.add(total, new, alpha=scale, out=out)


def _averaged(total: Tensor, new: Tensor, scale: float, mass: float) -> Tensor:
    """(total + scale new) / mass, in one pass over memory."""
    out = empty_pooled(new)
    if not large(new):
        return torch.add(total, new, alpha=scale, out=out).div_(mass)
    if total.ndim and (kernels := kernels_for(total, new)) is not None:
        partition((0, len(new))).run(kernels.averaged, total, new, as_scalar(scale, new), as_scalar(mass, new), out)
        return out
    for before, more, mean in blocks(total.expand_as(new), new, out):
        torch.add(before, more, alpha=scale, out=mean).div_(mass)
    return out


def pooled(state: dict[str, Any], now: Now) -> Update:
    """What was gathered, as one update: sums over the mass."""
    ticket, mass = Ticket(-1, -1, -1, now.version, now.time, now.weights, now.weights), state["mass"]
    mean, extras = state["sum"], state["extras"]
    if mass != 1:
        mean, extras = (
            torch.div(mean, mass, out=empty_pooled(mean)),
            {name: total / mass for name, total in extras.items()},
        )
    return Update(ticket, mean, state["examples"], state["steps"], staleness=0, extras=extras or NOTHING)
