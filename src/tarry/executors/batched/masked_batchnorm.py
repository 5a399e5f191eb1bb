"""MaskedBatchNorm: BatchNorm in training as arithmetic that can be traced and stacked, over unmasked rows only.

    μ = Σ r x / n        σ² = Σ r (x − μ)² / n        y = γ (x − μ) / √(σ² + ε) + β
    mean ← mean + a (μ − mean)        variance ← variance + a (σ² n / (n − 1) − variance)

r is 1 for rows that count and 0 for masked rows, n the number of values of a channel that count, a the momentum of the
layer, or 1 over the batches so far where it has none; the counter of such a layer goes in and out with the running
statistics. Nothing is written in place: new statistics replace the layer's attributes, and `functional_call` returns
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .trace import NotStackable

__all__ = ["MaskedBatchNorm"]

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_HALVES = (torch.bfloat16, torch.float16)


class MaskedBatchNorm:
    """The BatchNorm layers of a module."""

    def __init__(self, module: nn.Module):
        self._layers = [m for m in module.modules() if isinstance(m, _KINDS) and "forward" not in vars(m)]
        self._layers = [m for m in self._layers if type(m).forward is _BatchNorm.forward]
        counted = {id(m.num_batches_tracked) for m in self._layers if m.momentum is None and m.running_mean is not None}
        moved = {id(b) for m in self._layers for b in (m.running_mean, m.running_var)} | counted
        named = dict(module.named_buffers())
        self.counters = {name: b for name, b in named.items() if id(b) in counted}
        self.moved = frozenset(name for name, b in named.items() if id(b) in moved)  # buffers that these layers update
        self.pairs = False  # whether a channel had one value an example in a pass: a batch of one is too few then

    @contextmanager
    def use_rows(self, rows: Tensor | None) -> Iterator[None]:
        """Let the layers use these rows of a batch alone (None: all)."""
        for m in self._layers:
            vars(m)["forward"] = partial(self._pass, m, rows)
        try:
            yield
        finally:
            for m in self._layers:
                del vars(m)["forward"]

    def _pass(self, m: _BatchNorm, rows: Tensor | None, given: Tensor) -> Tensor:
        x = given.float() if given.dtype in _HALVES else given  # weights and statistics have full precision
        if not m.training and m.running_mean is not None:
            return _BatchNorm.forward(m, x).to(given.dtype)
        m._check_input_dim(x)  # type: ignore[no-untyped-call]
        self.pairs |= x.shape[2:].numel() == 1
        out, mean, var = _of_all(m, x) if rows is None else _of_some(m, x, rows)
        if m.training and m.running_mean is not None:
            _move(m, mean.detach(), var.detach())
        return out.to(given.dtype)


def _of_all(m: _BatchNorm, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, and mean and unbiased variance of the batch."""
    n = len(x) * x.shape[2:].numel()
    out, mean, inverse = torch.native_batch_norm(x, m.weight, m.bias, None, None, True, 0.0, m.eps)
    var = (inverse.pow(-2) - m.eps).clamp_min(0)
    return out, mean, var * (n / max(n - 1, 1))


def _of_some(m: _BatchNorm, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if len(rows) != len(x):
        raise NotStackable("it normalizes something else than its batch's examples, and batches are padded")
    counts = rows.to(x.dtype)[:, None]
    n = (counts.sum() * x.shape[2:].numel()).clamp_min(1)
    out, mean, var = _Over.apply(x, m.weight, m.bias, counts / n, m.eps)  # type: ignore[no-untyped-call]
    return out, mean, var * (n / (n - 1).clamp_min(1))


class _Over(torch.autograd.Function):
    """Outputs, μ and σ²; `share`: r/n, a row an example. The backward pass takes half the operations of autograd's:

    ∂x = γ/√(σ² + ε) · (∂y − r/n (Σ ∂y + x̂ Σ ∂y x̂))        x̂ = (x − μ)/√(σ² + ε)
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, share: Tensor, eps: float) -> Any:
        mean = (share * _a_row(x)).sum(0)
        off = x - _along(mean, x)
        var = (share * _a_row(off * off)).sum(0)
        inverse = torch.rsqrt(var + eps)
        unit = off * _along(inverse, x)
        scale = inverse if weight is None else inverse * weight
        out = unit if weight is None else unit * _along(weight, x)
        ctx.save_for_backward(unit, scale, share)
        ctx.mark_non_differentiable(mean, var)
        return out if bias is None else out + _along(bias, x), mean, var

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> Any:
        unit, scale, share = ctx.saved_tensors
        to_bias, to_weight = _a_row(g).sum(0), _a_row(g * unit).sum(0)
        common = torch.addcmul(_along(to_bias, g), unit, _along(to_weight, g))
        to_x = (g - share.view(-1, *[1] * (g.ndim - 1)) * common) * _along(scale, g)
        has_weight, has_bias = ctx.needs_input_grad[1:3]
        return to_x, to_weight if has_weight else None, to_bias if has_bias else None, None, None


def _along(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (x.ndim - 2))


def _a_row(values: Tensor) -> Tensor:
    """Return sums, a row an example and a column a channel."""
    return values.sum(tuple(range(2, values.ndim))) if values.ndim > 2 else values


def _move(m: _BatchNorm, mean: Tensor, var: Tensor) -> None:
    share: Any = m.momentum
    if share is None:
        assert m.num_batches_tracked is not None
        m.num_batches_tracked = m.num_batches_tracked + 1
        share = 1 / m.num_batches_tracked
    for name, seen in (("running_mean", mean), ("running_var", var)):
        old = getattr(m, name)
        setattr(m, name, old + share * (seen.to(old.dtype) - old))
