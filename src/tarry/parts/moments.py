"""Server steps that remember: an update's displacement Δ is taken for a gradient, in downhill sign.

    momentum   v ← β v + Δ                          W ← W + η v,  or W + η (Δ + β v), which is Nesterov's
    adaptive   m ← β1 m + (1 − β1) Δ                W ← W + η_t m / (√v + ε)
      adam       v ← β2 v + (1 − β2) Δ²
      yogi       v ← v − (1 − β2) Δ² sign(v − Δ²)
      adagrad    v ← v + Δ²
      amsgrad    v̂ ← max(v̂, v), and √v̂ in place of √v

All of it element by element, with no correction of the moments' bias. A weight that a correct part gave an update
scales its Δ, as in a buffer. Running statistics take no moments: they go straight, at most the whole way, as in
parts.step; after an adaptive step, whose η is a length and no share, the whole way.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Now, Part
from ..core.ticket import Update

__all__ = ["Second", "adagrad", "adam", "adaptive", "momentum", "yogi"]

#: v, Δ → v
Second = Callable[[Tensor, Tensor], Tensor]


def adam(beta2: float) -> Second:
    """A mean of squares that forgets."""
    _decay("beta2", beta2)
    return lambda v, delta: torch.addcmul(v * beta2, delta, delta, value=1 - beta2)


def yogi(beta2: float) -> Second:
    """As adam's, but a change is no larger than (1 − β2) Δ², however large v is."""
    _decay("beta2", beta2)

    def second(v: Tensor, delta: Tensor) -> Tensor:
        square = delta * delta
        return torch.addcmul(v, square, torch.sign(v - square), value=beta2 - 1)

    return second


def adagrad() -> Second:
    """The sum of all squares."""
    return lambda v, delta: torch.addcmul(v, delta, delta)


def adaptive(
    eta: float,
    second: Second,
    *,
    beta1: float,
    eps: float,
    v0: float = 0.0,
    amsgrad: bool = False,
    late: Callable[[int], float] | None = None,
) -> Part[Update, Tensor]:
    """W ← W + η_t m / (√v + ε). m begins at 0, v at v0; `late` gives η_t by the update's staleness, else it is η."""
    _rate(eta)
    _decay("beta1", beta1)
    if not eps > 0:
        raise BadInput(f"--method.eps {eps}: must be above 0")

    def init(weights: Tensor) -> dict[str, Any]:  # a number each, until the first step shows how many are trained
        v = weights.new_full((), v0)
        return {"m": weights.new_zeros(()), "v": v, **({"largest": v} if amsgrad else {})}

    def apply(update: Update, state: dict[str, Any], now: Now) -> tuple[Tensor, dict[str, Any]]:
        moved, w = now.moved(update), now.layout.params(now.weights)
        delta = _weighed(update, moved, now)
        m = torch.lerp(state["m"], delta, 1 - beta1) if beta1 else delta
        v = second(state["v"], delta)
        kept = {"m": m if beta1 else state["m"], "v": v}
        if amsgrad:
            v = kept["largest"] = torch.maximum(state["largest"], v)
        eta_t = eta if late is None else late(update.staleness)
        new = torch.addcdiv(w, m, v.sqrt().add_(eps), value=eta_t)
        return _with_statistics(new, moved, update.weight, now), kept

    return Part(apply, init)


def momentum(eta: float, beta: float, *, nesterov: bool = False) -> Part[Update, Tensor]:
    """W ← W + η v with v ← β v + Δ, from v = 0."""
    _rate(eta)
    _decay("beta", beta)

    def apply(update: Update, state: dict[str, Any], now: Now) -> tuple[Tensor, dict[str, Any]]:
        moved, w = now.moved(update), now.layout.params(now.weights)
        delta = _weighed(update, moved, now)
        v = torch.add(delta, state["v"], alpha=beta)
        way = torch.add(delta, v, alpha=beta) if nesterov else v
        return _with_statistics(torch.add(w, way, alpha=eta), moved, eta * update.weight, now), {"v": v}

    return Part(apply, lambda weights: {"v": weights.new_zeros(())})


def _weighed(update: Update, moved: Tensor, now: Now) -> Tensor:
    delta = now.layout.params(moved)
    return delta if update.weight == 1 else delta * update.weight


def _with_statistics(new: Tensor, moved: Tensor, share: float, now: Now) -> Tensor:
    """The new trained weights, and the share of the way that running statistics go."""
    n = now.layout.n_params
    if not now.layout.stats:
        return new
    return torch.cat([new, torch.add(now.weights[n:], moved[n:], alpha=min(share, 1.0))])


def _rate(eta: float) -> None:
    if not 0 < eta < inf:
        raise BadInput(f"--method.eta {eta}: must be above 0, and finite")


def _decay(name: str, beta: float) -> None:
    if not 0 <= beta < 1:
        raise BadInput(f"--method.{name} {beta}: must be in [0, 1)")
