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
from ..core.ticket import NOTHING, Ticket, Update
from ..core.vector import fresh
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
        state = gather(state, update, now, 1.0, carries=carries)
        return (pooled(state, now, ours=True), nothing_yet(now.weights)) if state["count"] == size else (None, state)

    return Part(apply, nothing_yet)


def round_mean(weighting: Weighting = "examples", *, carries: frozenset[str] = _CARRIED) -> Aggregate:
    """Wait until nobody is training any more, then pass on Σ (n_k/n) Δ_k over those who came (or their plain mean).

    A weight that an update was given scales its Δ_k.
    """

    def apply(update: Update | None, state: dict[str, Any], now: Now) -> tuple[Update | None, dict[str, Any]]:
        if update is not None:
            mass = update.n_examples if weighting == "examples" else 1
            state = gather(state, update, now, mass, carries=carries)
        if now.in_flight or not state["count"]:
            return None, state
        return pooled(state, now, ours=update is not None), nothing_yet(now.weights)

    return Part(apply, nothing_yet)


def nothing_yet(weights: Tensor) -> dict[str, Any]:
    """The sums before the first update; that of the displacements is a number until there is one."""
    return {"sum": weights.new_zeros(()), "extras": {}, "mass": 0.0, "count": 0, "examples": 0, "steps": 0}


def gather(
    state: dict[str, Any], update: Update, now: Now, mass: float, *, carries: frozenset[str] = _CARRIED
) -> dict[str, Any]:
    """The sums with one update more: mass · weight · Δ, and so its carried extras."""
    scale, extras = mass * update.weight, dict(state["extras"])
    for name in update.extras.keys() & carries:
        extra = update.extras[name]
        extras[name] = torch.add(extras[name], extra, alpha=scale) if name in extras else extra * scale
    return {
        "sum": torch.add(state["sum"], now.moved(update), alpha=scale, out=fresh(now.weights)),
        "extras": extras,
        "mass": state["mass"] + mass,
        "count": state["count"] + 1,
        "examples": state["examples"] + update.n_examples,
        "steps": state["steps"] + update.n_steps,
    }


def pooled(state: dict[str, Any], now: Now, *, ours: bool = False) -> Update:
    """What was gathered, as one update: sums over the mass. `ours`: the sum was made now, and may be written to."""
    ticket, mass = Ticket(-1, -1, -1, now.version, now.time, now.weights, now.weights), state["mass"]
    extras = {name: total / mass for name, total in state["extras"].items()} or NOTHING
    mean = torch.div(state["sum"], mass, out=state["sum"] if ours else fresh(state["sum"]))
    return Update(ticket, mean, state["examples"], state["steps"], staleness=0, extras=extras)
