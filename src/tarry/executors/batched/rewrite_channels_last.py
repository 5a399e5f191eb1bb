"""Rewrites a traced step so that images stay in channels-last order throughout, for torch.compile.

Tensor cores read images in channels-last order. torch's group normalization on a GPU converts its input to
channels-first, and every convolution and its backward pass convert it back, each by a kernel that the compiler cannot
fuse (an eighth of a ResNet18's step). Here the normalization is written in operations that keep the order, and inputs
of convolutions are declared channels-last. A vector that is added to a gradient is added to its parts before they are
concatenated: the gradient is written once and not read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from .trace import trace_function

__all__ = ["rewrite_channels_last"]

_aten = torch.ops.aten
_READS = {
    _aten.convolution.default: 1,
    _aten.convolution_backward.default: 2,
}  # number of leading arguments that are images
_NORMS = {_aten.native_group_norm.default, _aten.native_group_norm_backward.default}


def rewrite_channels_last(graph: GraphModule, args: Sequence[Tensor]) -> GraphModule:
    """Return the rewritten graph. Results are the same up to rounding."""
    return trace_function(_ChannelsLast(graph).run, args)


class _ChannelsLast(Interpreter):
    def __init__(self, graph: GraphModule):
        super().__init__(graph)
        self._joined: dict[Any, Sequence[Tensor]] = {}  # parts of concatenated vectors, by node

    def run_node(self, n: Node) -> Any:
        if n.target is _aten.clone.default and all(user.target in _NORMS for user in n.users):
            return self.fetch_args_kwargs_from_env(n)[0][0]  # a conversion to channels-first for a normalization
        if n.target is _aten.cat.default and len(n.args) == len(n.users) == 1:
            parts = self.fetch_args_kwargs_from_env(n)[0][0]
            self._joined |= {n: parts} if all(t.ndim == 1 for t in parts) else {}
        if n.target is _aten.add.Tensor and n.args[1] in self._joined:
            (to, whole), how = self.fetch_args_kwargs_from_env(n)
            if to.shape == whole.shape:
                parts = self._joined[n.args[1]]
                pairs = zip(to.split([len(b) for b in parts]), parts, strict=True)
                return torch.cat([a.add(b, **how) for a, b in pairs])
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _READS:
            n = _READS[target]
            args = (*(_channels_last(t) for t in args[:n]), *args[n:])
        elif target is _aten.native_group_norm.default:
            return _group_norm(*args, **kwargs)
        elif target is _aten.native_group_norm_backward.default:
            return _group_norm_backward(*args, **kwargs)
        return super().call_function(target, args, kwargs)


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, _: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what native_group_norm returns: outputs, and means and reciprocal deviations of every example's groups.

    Mean and variance of each channel are computed first, and those of groups from these.
    """
    over = tuple(range(2, x.ndim))
    var, mean = (t.view(n, groups, -1) for t in torch.var_mean(_wide(x), dim=over, correction=0))
    middle = mean.mean(2, keepdim=True)
    rstd = torch.rsqrt((var + (mean - middle) ** 2).mean(2, keepdim=True) + eps)
    gain = rstd.expand_as(mean) if weight is None else rstd * weight.view(1, groups, -1)
    offset = -middle * gain if bias is None else bias.view(1, groups, -1) - middle * gain
    scale, shift = (t.reshape(n, c, *[1] * len(over)) for t in (gain, offset))
    return (_wide(x) * scale + shift).to(x.dtype), middle.reshape(n, groups), rstd.reshape(n, groups)


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    n: int, c: int, hw: int, groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Read images twice: for two sums a channel, of which all else is computed, and for dx."""
    over, narrow, grad, x = tuple(range(2, x.ndim)), x.dtype, _wide(grad), _wide(x)
    of_grad, of_both = grad.sum(over).view(n, groups, -1), (grad * x).sum(over).view(n, groups, -1)
    m, r = mean.unsqueeze(2), rstd.unsqueeze(2)
    dx = dw = db = None
    if wanted[0]:
        gain = torch.ones_like(of_grad) if weight is None else weight.view(1, groups, -1).expand_as(of_grad)
        each, a = 1.0 / (c // groups * hw), (of_grad * gain).sum(2, keepdim=True)
        slope = (a * m - (of_both * gain).sum(2, keepdim=True)) * r**3 * each
        shift = -slope * m - a * r * each
        shape = (n, c, *[1] * len(over))
        one, two, three = (t.expand_as(of_grad).reshape(shape) for t in (r * gain, slope, shift))
        dx = (grad * one + x * two + three).to(narrow)
    if wanted[1]:
        dw = ((of_both - of_grad * m) * r).sum(0).view(c)
    if wanted[2]:
        db = of_grad.sum(0).view(c)
    return dx, dw, db


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t
