"""From an update to new global weights. Linear in the whole vector, so running statistics go along."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Now, Part, stateless
from ..core.ticket import Update
from .staleness import Decay

__all__ = ["add", "mix"]


def add(eta: float = 1.0) -> Part[Update, Tensor]:
    """W ← W + η Δ. Running statistics go at most the whole way to the clients', whatever η."""
    if not eta > 0:
        raise BadInput(f"--method.eta {eta}: must be above 0")

    def apply(update: Update, now: Now) -> Tensor:
        moved, n = now.moved(update), now.layout.n_params
        new = torch.add(now.weights, moved, alpha=eta)
        if eta > 1:
            torch.add(now.weights[n:], moved[n:], out=new[n:])
        return new

    return stateless(apply)


def mix(beta: float, s: Decay, *, flag: str = "beta") -> Part[Update, Tensor]:
    """W ← (1 − β_t) W + β_t W_m with β_t = β s(τ)."""
    if not 0 < beta <= 1:
        raise BadInput(f"--method.{flag} {beta}: must be above 0 and at most 1")

    def apply(update: Update, now: Now) -> Tensor:
        return torch.lerp(now.weights, update.local, beta * s(update.staleness))

    return stateless(apply)
