"""When the server has enough to take a step: at each arrival (the default), after K, or when a round is complete.

What is passed on stands for several clients: its ticket is written at the global weights of the moment.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Now, Part
from ..core.ticket import NOTHING, Ticket, Update
from .manifold import CONTROL

__all__ = ["buffer", "round_mean"]

Aggregate = Part[Update | None, Update | None]


def buffer(size: int) -> Aggregate:
    """Collect `size` updates, then pass on (1/size) Σ weight_k Δ_k."""
    if size < 1:
        raise BadInput(f"--method.buffer {size}: must be 1 or more")

    def apply(update: Update | None, state: dict[str, Any], now: Now) -> tuple[Update | None, dict[str, Any]]:
        if update is None:
            return None, state
        state = _gather(state, update, now, 1.0)
        return (_pooled(state, now, size), _empty(now.weights)) if state["count"] == size else (None, state)

    return Part(apply, _empty)


def round_mean(weighting: Literal["examples", "uniform"] = "examples") -> Aggregate:
    """Wait until nobody is training any more, then pass on Σ (n_k/n) Δ_k over those who came (or their plain mean).

    A weight that an update was given scales its Δ_k.
    """

    def apply(update: Update | None, state: dict[str, Any], now: Now) -> tuple[Update | None, dict[str, Any]]:
        if update is not None:
            state = _gather(state, update, now, update.n_examples if weighting == "examples" else 1)
        if now.in_flight or not state["count"]:
            return None, state
        return _pooled(state, now, state["mass"]), _empty(now.weights)

    return Part(apply, _empty)


def _empty(weights: Tensor) -> dict[str, Any]:
    return {"sum": torch.zeros_like(weights), "control": None, "mass": 0.0, "count": 0, "examples": 0, "steps": 0}


def _gather(state: dict[str, Any], update: Update, now: Now, mass: float) -> dict[str, Any]:
    scale = mass * update.weight
    return {
        "sum": torch.add(state["sum"], now.moved(update), alpha=scale),
        "control": _bent(state["control"], update, scale),
        "mass": state["mass"] + mass,
        "count": state["count"] + 1,
        "examples": state["examples"] + update.n_examples,
        "steps": state["steps"] + update.n_steps,
    }


def _bent(total: Tensor | None, update: Update, scale: float) -> Tensor | None:
    """Control points add up like displacements: the mean of curves from one point is the curve of the means."""
    d = update.extras.get(CONTROL)
    if d is None:
        return total
    return d * scale if total is None else torch.add(total, d, alpha=scale)


def _pooled(state: dict[str, Any], now: Now, mass: float) -> Update:
    ticket = Ticket(-1, -1, -1, now.version, now.time, now.weights, now.weights)
    extras = NOTHING if state["control"] is None else {CONTROL: state["control"] / mass}
    return Update(ticket, state["sum"] / mass, state["examples"], state["steps"], staleness=0, extras=extras)
