"""Client optimizers as pure functions of flat vectors; the same arithmetic as torch.optim's of the same name.

init(w) → state        descend(w, g, state) → w, state        warm(first, second) → state, of an optimizer with moments

`overwrite(w, g, state)` → state is the same arithmetic, to the bit, written to w, g and the state.

Clipping is part of an optimizer: it limits the direction that a rule gives it to descend, as torch's clip_grad_norm_
and clip_grad_value_ do before a step. Weight decay and momentum come after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import BadInput, near

__all__ = ["USUAL_ADAM", "AdamNumbers", "Optimizer", "clip_norm", "make_optimizer"]


@dataclass(frozen=True)
class Optimizer:
    """Pure functions and the name they go by."""

    name: str
    init: Callable[[Tensor], Any]
    apply_gradient: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]
    warm: Callable[[Tensor, Tensor], Any] | None = None  # begin with given first and second moments; steps count from 0
    lr: float = 0.0
    momentum: float = 0.0  # of sgd
    at: Callable[[Any], Optimizer] | None = None  # the same at another rate, which may be a tensor
    overwrite: Callable[[Tensor, Tensor, Any], Any] | None = None


def clip_norm(g: Tensor, limit: float | None) -> Tensor:
    """Return g, rescaled to the norm `limit` if it is longer."""
    return g if limit is None else g * _norm_factor(g, limit)


def _norm_factor(g: Tensor, limit: float) -> Tensor:
    factor: Tensor = (limit / torch.linalg.vector_norm(g)).clamp(max=1)
    return factor


def _clipped(optimizer: Optimizer, norm: float | None, value: float | None) -> Optimizer:
    """Return the optimizer with gradients clipped: first each entry to ±value, then the whole to a norm."""
    if norm is None and value is None:
        return optimizer
    descend, overwrite, at = optimizer.apply_gradient, optimizer.overwrite, optimizer.at
    assert overwrite is not None
    assert at is not None

    def clipped_descend(w: Tensor, g: Tensor, state: Any) -> tuple[Tensor, Any]:
        g = g if value is None else g.clamp(-value, value)
        return descend(w, clip_norm(g, norm), state)

    def clipped_overwrite(w: Tensor, g: Tensor, state: Any) -> Any:
        if value is not None:
            g.clamp_(-value, value)
        if norm is not None:
            g.mul_(_norm_factor(g, norm))
        return overwrite(w, g, state)

    return replace(
        optimizer,
        apply_gradient=clipped_descend,
        overwrite=clipped_overwrite,
        at=lambda lr: _clipped(at(lr), norm, value),
    )


def _along(w: Tensor, g: Tensor, rate: Any) -> Tensor:
    """w − rate · g in one pass, whether the rate is a number or a tensor."""
    return torch.addcmul(w, g, rate, value=-1) if isinstance(rate, Tensor) else torch.add(w, g, alpha=-rate)


def _move_along(w: Tensor, g: Tensor, rate: Any) -> None:
    """w ← w − rate · g."""
    if isinstance(rate, Tensor):
        w.addcmul_(g, rate, value=-1)
    else:
        w.add_(g, alpha=-rate)


def _sgd(lr: Any, momentum: float, weight_decay: float) -> Optimizer:
    def init(w: Tensor) -> Tensor | None:
        return torch.zeros_like(w) if momentum else None

    def descend(w: Tensor, g: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if weight_decay:
            g = torch.add(g, w, alpha=weight_decay)
        if v is not None:
            g = v = torch.add(g, v, alpha=momentum)
        return _along(w, g, lr), v

    def overwrite(w: Tensor, g: Tensor, v: Tensor | None) -> Tensor | None:
        if weight_decay:
            g.add_(w, alpha=weight_decay)
        if v is not None:
            g = torch.add(g, v, alpha=momentum, out=v)
        _move_along(w, g, lr)
        return v

    at = partial(_sgd, momentum=momentum, weight_decay=weight_decay)
    return Optimizer("sgd", init, descend, lr=lr, momentum=momentum, at=at, overwrite=overwrite)


class AdamNumbers(NamedTuple):
    """β₁, β₂ and ε of Adam."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


USUAL_ADAM = AdamNumbers()


def _adam(lr: Any, weight_decay: float, *, decoupled: bool, numbers: AdamNumbers) -> Optimizer:
    b1, b2, eps = numbers

    def warm(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return first, second, torch.zeros((), dtype=torch.float64, device=first.device)

    def init(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return warm(torch.zeros_like(w), torch.zeros_like(w))

    def descend(w: Tensor, g: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Any]:
        m, v, t = state
        t = t + 1
        if weight_decay and decoupled:
            w = w * (1 - lr * weight_decay)
        elif weight_decay:
            g = torch.add(g, w, alpha=weight_decay)
        m = torch.lerp(m, g, 1 - b1)
        v = torch.addcmul(v * b2, g, g, value=1 - b2)
        scale = v.sqrt().div_((1 - b2**t).sqrt().to(w.dtype)).add_(eps)
        return torch.addcmul(w, m / scale, (lr / (1 - b1**t)).to(w.dtype), value=-1), (m, v, t)

    def overwrite(w: Tensor, g: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> Any:
        m, v, t = state
        t = t + 1
        if weight_decay and decoupled:
            w.mul_(1 - lr * weight_decay)
        elif weight_decay:
            g.add_(w, alpha=weight_decay)
        m.lerp_(g, 1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        scale = torch.sqrt(v, out=g).div_((1 - b2**t).sqrt().to(w.dtype)).add_(eps)
        w.addcmul_(torch.div(m, scale, out=g), (lr / (1 - b1**t)).to(w.dtype), value=-1)
        return m, v, t

    at = partial(_adam, weight_decay=weight_decay, decoupled=decoupled, numbers=numbers)
    return Optimizer("adamw" if decoupled else "adam", init, descend, warm, lr=lr, at=at, overwrite=overwrite)


def make_optimizer(
    name: str = "sgd",
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    numbers: AdamNumbers = USUAL_ADAM,
) -> Optimizer:
    """The optimizer of that name: sgd (momentum, weight decay), adam, adamw (β₁, β₂, ε); with clipped gradients."""
    problems = []
    if not lr > 0:
        problems.append(f"--lr {lr:g}: must be above 0")
    if not 0 <= momentum < 1:
        problems.append(f"--momentum {momentum}: must be in [0, 1)")
    if momentum and name != "sgd":
        problems.append(f"--momentum {momentum}: only --optimizer sgd has it")
    if not weight_decay >= 0:
        problems.append(f"--weight-decay {weight_decay}: must be 0 or more")
    for flag, limit in (("--clip-norm", clip_norm), ("--clip-value", clip_value)):
        if limit is not None and not limit > 0:
            problems.append(f"{flag} {limit}: must be above 0")
    if name not in ("sgd", "adam", "adamw"):
        problems.append(f"--optimizer {name}: there is no such optimizer.{near(name, ['sgd', 'adam', 'adamw'])}")
    if problems:
        raise BadInput(problems)
    if name == "sgd":
        made = _sgd(lr, momentum, weight_decay)
    else:
        made = _adam(lr, weight_decay, decoupled=name == "adamw", numbers=numbers)
    return _clipped(made, clip_norm, clip_value)
