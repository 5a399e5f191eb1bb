"""Aggregate parts: the server steps after K updates, or when a round is complete. (The default: at each arrival.)

The update that is passed on stands for several clients: its ticket is written at the global weights of the moment.
Extras in `carries` are averaged like the displacements; other extras are dropped.

To write another aggregate: empty_sums(weights) → sums, accumulate(sums, update, view, mass) → sums,
mean_update(sums, view) → the update to pass on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..core.method import ServerView
from ..core.parts import Aggregate
from ..core.state_tree import StateRecord
from ..core.tickets import CONTROL, NOTHING, Ticket, Update
from ..vector.blocks import blocks, large
from ..vector.fused import as_scalar, combine, kernels_for, partition
from ..vector.pool import empty_pooled
from .checks import at_least, check

__all__ = ["Sums", "Weighting", "accumulate", "buffer", "empty_sums", "mean_update", "round_mean"]

Weighting = Annotated[Literal["examples", "uniform"], "clients weigh by their examples, or all alike"]
_CARRIED = frozenset({CONTROL})  # the mean of curves from one point is the curve of the means


@dataclass  # not frozen: one is made at every arrival, and a frozen one takes three times as long
class Sums(StateRecord):
    """The sums over several updates."""

    sum: Tensor  # Σ mass · weight · Δ; a number before the first update
    extras: dict[str, Tensor]  # Σ mass · weight · extra
    mass: float
    count: int  # updates
    examples: int
    steps: int


def buffer(size: int, *, carries: frozenset[str] = _CARRIED) -> Aggregate:
    """Collect `size` updates, then pass on (1/size) Σ weight_k Δ_k."""
    check(at_least(1, buffer=size))

    def apply(update: Update | None, sums: Sums, view: ServerView) -> tuple[Update | None, Sums]:
        if update is None:
            return None, sums
        last = sums.count + 1 == size
        sums = accumulate(sums, update, view, 1.0, carries=carries, last=last)
        return (mean_update(sums, view), empty_sums(view.weights)) if last else (None, sums)

    return Aggregate(apply, empty_sums)


def round_mean(weighting: Weighting = "examples", *, carries: frozenset[str] = _CARRIED) -> Aggregate:
    """Return an aggregate part: at the end of a round, pass on Σ (n_k/n) weight_k Δ_k (or the plain mean)."""

    def apply(update: Update | None, sums: Sums, view: ServerView) -> tuple[Update | None, Sums]:
        if update is not None:
            mass = update.n_examples if weighting == "examples" else 1
            sums = accumulate(sums, update, view, mass, carries=carries, last=not view.in_flight)
        if view.in_flight or not sums.count:
            return None, sums
        return mean_update(sums, view), empty_sums(view.weights)

    return Aggregate(apply, empty_sums)


def empty_sums(weights: Tensor) -> Sums:
    """Return the sums before the first update."""
    return Sums(weights.new_zeros(()), extras={}, mass=0.0, count=0, examples=0, steps=0)


def accumulate(
    sums: Sums, update: Update, view: ServerView, mass: float, *, carries: frozenset[str] = _CARRIED, last: bool = False
) -> Sums:
    """Return the sums with one more update: mass · weight · Δ, and the same of the extras in `carries`.

    With `last` the sums become means in the same pass over memory; then nothing more may be added.
    """
    scale, extras, delta = mass * update.weight, dict(sums.extras), view.displacement(update)
    for name in update.extras.keys() & carries:
        extra = update.extras[name]
        extras[name] = torch.add(extras[name], extra, alpha=scale) if name in extras else extra * scale
    mass += sums.mass
    return Sums(
        sum=_mean(sums.sum, delta, scale, mass) if last else _add(sums.sum, delta, scale),
        extras={name: extra / mass for name, extra in extras.items()} if last else extras,
        mass=1.0 if last else mass,
        count=sums.count + 1,
        examples=sums.examples + update.n_examples,
        steps=sums.steps + update.n_steps,
    )


def _add(total: Tensor, new: Tensor, scale: float) -> Tensor:
    out = empty_pooled(new)
    if total.ndim and large(new):
        return combine(total, new, scale, out=out)
    return torch.add(total, new, alpha=scale, out=out)


def _mean(total: Tensor, new: Tensor, scale: float, mass: float) -> Tensor:
    """Return (total + scale new) / mass, in one pass over memory."""
    out = empty_pooled(new)
    if not large(new):
        return torch.add(total, new, alpha=scale, out=out).div_(mass)
    if total.ndim and (kernels := kernels_for(total, new)) is not None:
        partition((0, len(new))).run(kernels.average, total, new, as_scalar(scale, new), as_scalar(mass, new), out)
        return out
    for before, more, mean in blocks(total.expand_as(new), new, out):
        torch.add(before, more, alpha=scale, out=mean).div_(mass)
    return out


def mean_update(sums: Sums, view: ServerView) -> Update:
    """Return the sums as one update of this moment, divided by the mass."""
    ticket = Ticket(-1, -1, -1, view.version, view.time, view.weights, view.weights)
    mean, extras = sums.sum, sums.extras
    if sums.mass != 1:
        mean = torch.div(mean, sums.mass, out=empty_pooled(mean))
        extras = {name: total / sums.mass for name, total in extras.items()}
    return Update(ticket, mean, sums.examples, sums.steps, staleness=0, extras=extras or NOTHING)
