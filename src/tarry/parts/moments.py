"""Step parts with memory: server optimizers that take an update's displacement Δ for a gradient, in downhill sign.

    momentum   v ← β v + Δ                          W ← W + η v,  or W + η (Δ + β v), which is Nesterov's
    adaptive   m ← β1 m + (1 − β1) Δ                W ← W + η_t m / (√v + ε)
      adam       v ← β2 v + (1 − β2) Δ²
      yogi       v ← v − (1 − β2) Δ² sign(v − Δ²)
      adagrad    v ← v + Δ²
      amsgrad    v̂ ← max(v̂, v), and √v̂ in place of √v

All of it element by element, without bias correction of the moments. The update's weight, from a correct part, scales
its Δ, as in a buffer. Running statistics have no moments: they go straight, at most to t = 1, as in parts.step; with an
adaptive step, whose η is a length and not a share, they go to t = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import ServerView
from ..core.parts import Step
from ..core.schedule import RateSchedule
from ..core.tickets import Update
from ..vector.blocks import blocks
from ..vector.fused import as_scalar, kernels_for, partition
from ..vector.pool import empty_pooled
from .checks import above, check, decay
from .step import scheduled

__all__ = ["Second", "adagrad", "adam", "adaptive", "momentum", "yogi"]


class Second(Protocol):
    """v, Δ → v; written to `out` if there is one."""

    def __call__(self, v: Tensor, delta: Tensor, out: Tensor | None = None, /) -> Tensor: ...


class Adam(NamedTuple):
    """v ← β2 v + (1 − β2) Δ²."""

    beta2: float

    def __call__(self, v: Tensor, delta: Tensor, out: Tensor | None = None, /) -> Tensor:
        return torch.addcmul(torch.mul(v, self.beta2, out=out), delta, delta, value=1 - self.beta2, out=out)


def adam(beta2: float) -> Second:
    """v ← β2 v + (1 − β2) Δ²."""
    check(decay(beta2=beta2))
    return Adam(beta2)


def yogi(beta2: float) -> Second:
    """v ← v − (1 − β2) Δ² sign(v − Δ²): changes are at most (1 − β2) Δ², however large v is."""
    check(decay(beta2=beta2))

    def second(v: Tensor, delta: Tensor, out: Tensor | None = None) -> Tensor:
        square = delta * delta
        return torch.addcmul(v, square, torch.sign(v - square), value=beta2 - 1, out=out)

    return second


def adagrad() -> Second:
    """v ← v + Δ²."""
    return lambda v, delta, out=None: torch.addcmul(v, delta, delta, out=out)


def adaptive(
    eta: float,
    second: Second,
    *,
    beta1: float,
    eps: float,
    v0: float = 0.0,
    amsgrad: bool = False,
    late: Callable[[int], float] | None = None,
    schedule: RateSchedule | None = None,
) -> Step:
    """W ← W + η_t m / (√v + ε), m = 0 and v = v0 at first. `late`: η_t by the update's staleness; None: always η.

    A schedule multiplies η_t.
    """
    _rate(eta)
    check(decay(beta1=beta1), above(0, eps=eps))

    def init(weights: Tensor) -> dict[str, Any]:  # numbers, until the first step
        v = weights.new_full((), v0)
        return {"m": weights.new_zeros(()), "v": v, **({"largest": v} if amsgrad else {})}

    def apply(update: Update, state: dict[str, Any], view: ServerView) -> tuple[Tensor, dict[str, Any]]:
        moved, w = view.displacement(update), view.layout.params(view.weights)
        delta, eta_t = _weigh(update, moved, view), eta if late is None else late(update.staleness)
        eta_t = scheduled(eta_t, schedule, view)
        old = {name: x.expand_as(delta) for name, x in state.items()}
        moments = {name: empty_pooled(delta) for name in state if name != "m" or beta1}
        new, names = empty_pooled(w), list(moments)
        if isinstance(second, Adam) and _in_one_pass(delta, w, state, moments, new, 1 - beta1, second, eta_t, eps):
            return _with_statistics(new, moved, update.weight, view), {**state, **moments}
        for d, w_, out, *both in blocks(delta, w, new, *(old[k] for k in names), *moments.values()):
            was, to = dict(zip(names, both, strict=False)), dict(zip(names, both[len(names) :], strict=True))
            m = torch.lerp(was["m"], d, 1 - beta1, out=to["m"]) if beta1 else d
            v = second(was["v"], d, to["v"])
            if amsgrad:
                v = torch.maximum(was["largest"], v, out=to["largest"])
            torch.addcdiv(w_, m, torch.sqrt(v, out=out).add_(eps), value=eta_t, out=out)
        return _with_statistics(new, moved, update.weight, view), {**state, **moments}

    again = partial(adaptive, eta, second, beta1=beta1, eps=eps, v0=v0, amsgrad=amsgrad, late=late)
    return Step(apply, init, with_schedule=lambda schedule: again(schedule=schedule))


def _in_one_pass(
    d: Tensor,
    w: Tensor,
    old: dict[str, Tensor],
    new: dict[str, Tensor],
    out: Tensor,
    t: float,
    second: Adam,
    eta: float,
    eps: float,
) -> bool:
    """Make Adam's step in one pass over memory, if there is a kernel for it; return whether it was made."""
    kernels = kernels_for(d, w, *old.values()) if len(new) == len(old) and all(x.ndim for x in old.values()) else None
    if kernels is None:
        return False
    top = "largest" if "largest" in old else "v"
    numbers = [as_scalar(x, d) for x in (t, second.beta2, 1 - second.beta2, eta, eps)]
    given = (d, w, old["m"], old["v"], old[top], *numbers, top != "v", new["m"], new["v"], new[top], out)
    partition((0, len(d))).run(kernels.adam_step, *given)
    return True


def momentum(eta: float, beta: float, *, nesterov: bool = False, schedule: RateSchedule | None = None) -> Step:
    """W ← W + η v with v ← β v + Δ, from v = 0."""
    _rate(eta)
    check(decay(beta=beta))

    def apply(update: Update, state: dict[str, Any], view: ServerView) -> tuple[Tensor, dict[str, Any]]:
        moved, w = view.displacement(update), view.layout.params(view.weights)
        delta = _weigh(update, moved, view)
        v = torch.add(delta, state["v"], alpha=beta)
        way = torch.add(delta, v, alpha=beta) if nesterov else v
        eta_t = scheduled(eta, schedule, view)
        return _with_statistics(torch.add(w, way, alpha=eta_t), moved, eta_t * update.weight, view), {"v": v}

    again = partial(momentum, eta, beta, nesterov=nesterov)
    init = lambda weights: {"v": weights.new_zeros(())}  # noqa: E731
    return Step(apply, init, with_schedule=lambda schedule: again(schedule=schedule))


def _weigh(update: Update, moved: Tensor, view: ServerView) -> Tensor:
    delta = view.layout.params(moved)
    return delta if update.weight == 1 else delta * update.weight


def _with_statistics(new: Tensor, moved: Tensor, share: float, view: ServerView) -> Tensor:
    """Return the new trained weights, with running statistics that go this share of their way."""
    n = view.layout.n_params
    if not view.layout.stats:
        return new
    return torch.cat([new, torch.add(view.weights[n:], moved[n:], alpha=min(share, 1.0))])


def _rate(eta: float) -> None:
    if not 0 < eta < inf:
        raise BadInput(f"--method.eta {eta}: must be above 0, and finite")
