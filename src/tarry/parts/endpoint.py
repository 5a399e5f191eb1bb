"""Delay correction: what a displacement trained from an older global means for the present one.

    Δ̂ = Δ + λ M (Θ^τ − Θ^t)       AsyncManifold Sec. 3, Δ = Θ^t − Θ_i uphill

Here, downhill: δ = −Δ is the client's displacement, G = Θ^τ − Θ^t the drift of the global since the hand-out, and
δ̂ = δ − λ M G. The corrected update stands at the present global, so any aggregate and step can follow: W + δ̂ is the
endpoint Θ̂.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.method import Now, Part
from ..core.ticket import Update

__all__ = ["Rule", "corrected"]

#: (δ, G, state) → (δ̂, state), over the trained weights
Rule = Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]


def corrected(rule: Rule, init: Callable[[Tensor], Any] = lambda _: None) -> Part[Update, Update]:
    """A correct part from a rule. Running statistics have no direction: they stay the client's."""

    def apply(update: Update, state: Any, now: Now) -> tuple[Update, Any]:
        params, moved = now.layout.params, now.moved(update)
        drift = params(now.weights) - params(update.ticket.sent)
        new, state = rule(params(moved), drift, state)
        if now.layout.stats:
            new = torch.cat([new, moved[now.layout.n_params :]])
        here = update.ticket._replace(sent=now.weights, anchor=now.weights, version=now.version)
        return update.but(ticket=here, delta=new), state

    return Part(apply, init)
