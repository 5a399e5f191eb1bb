"""Rewrites convolutions with few channels in a traced step to numba kernels (numba_kernels), for a CPU.

From such a convolution on, images have their examples innermost: elementwise operations keep that, and average pooling
is rewritten for it. Other operations convert them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import pad

from ....vector.fused import numba
from ..trace import trace_function
from .rewrite import ConvolutionRewrite, of_stack

__all__ = ["few_channels", "with_numba_convolutions"]

_aten = torch.ops.aten
_KERNELS = "tarry.executors.batched.conv.numba_kernels"
_MANY = 16  # channels that CPU libraries vectorize over
_POOLS = {
    _aten.avg_pool2d.default: 1,
    _aten.avg_pool2d_backward.default: 2,
}  # place of the window size among the arguments


def with_numba_convolutions(graph: GraphModule, args: Sequence[Tensor]) -> GraphModule:
    """Return the rewritten graph, equal up to rounding; the graph itself where no convolution is faster so."""
    if numba(_KERNELS) is None:
        return graph
    _operations()
    made = _InPlanes(graph)
    other = trace_function(made.run, args)
    return other if made.any else graph


def few_channels(filters: Sequence[int]) -> bool:
    """Return whether filters of this shape [outputs, inputs, height, width] have few channels."""
    return min(filters[:2]) < _MANY


class _InPlanes(ConvolutionRewrite):
    def takes(self, weight: Tensor) -> bool:
        return few_channels(weight.shape)

    def correlate(self, x: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
        out: Tensor = torch.ops.tarry.planes.default(_wide(x, padding)[None], weight[None], padding[0])
        return out[0].permute(3, 0, 1, 2)

    def filters(self, x: Tensor, grad: Tensor, size: tuple[int, int], padding: Sequence[int]) -> Tensor:
        out: Tensor = torch.ops.tarry.planes_filters.default(
            _wide(x, padding)[None], _wide(grad, (0, 0))[None], *size, padding[0]
        )
        return out[0]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        at = _POOLS.get(target)
        if at is not None and not kwargs and _windows_tile(args[at - 1], *args[at:]):
            return _means(args[0], args[1]) if at == 1 else _spread(args[0], args[2])
        return super().call_function(target, args, kwargs)


@cache
def _operations() -> Any:
    """Register two operations, which exist as long as the returned library does."""
    library: Any = torch.library.Library("tarry", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema, fn, made in (
        ("planes", "(Tensor x, Tensor w, int up) -> Tensor", _planes, _empty_planes),
        ("planes_filters", "(Tensor x, Tensor g, int height, int width, int up) -> Tensor", _filters, _empty_filters),
    ):
        library.define(name + schema)
        library.impl(name, fn, "CPU")
        library.impl(name, made, "Meta")
        torch.library.register_vmap(f"tarry::{name}", of_stack(getattr(torch.ops.tarry, name).default), lib=library)
    return library


def _planes(x: Tensor, w: Tensor, up: int) -> Tensor:
    """[clients, inputs, height, width, examples] with [clients, outputs, inputs, …] → [clients, outputs, …]"""
    out, n = _empty_planes(x, w, up), x.shape[4]
    kernels = numba(_KERNELS)
    assert kernels is not None
    kernels.correlate(_runs(x), w.contiguous().numpy(), _runs(out), n, up)
    return out


def _filters(x: Tensor, g: Tensor, height: int, width: int, up: int) -> Tensor:
    out = _empty_filters(x, g, height, width, up)
    kernels = numba(_KERNELS)
    assert kernels is not None
    kernels.correlate_filters(_runs(x), _runs(g), out.numpy(), x.shape[4], up)
    return out


def _empty_planes(x: Tensor, w: Tensor, up: int) -> Tensor:
    down, across = x.shape[2] + 2 * up - w.shape[3] + 1, x.shape[3] - w.shape[4] + 1
    return x.new_empty(len(x), w.shape[1], down, across, x.shape[4])


def _empty_filters(x: Tensor, g: Tensor, height: int, width: int, up: int) -> Tensor:  # noqa: ARG001
    return x.new_empty(len(x), g.shape[1], x.shape[1], height, width)


def _runs(x: Tensor) -> Any:
    """[clients, channels, lines, places × examples], a line a contiguous run."""
    return x.contiguous().flatten(3).numpy()


def _wide(x: Tensor, padding: Sequence[int]) -> Tensor:
    """[channels, height, width, examples], padded to the left and the right."""
    planes, left = x.permute(1, 2, 3, 0), padding[1]
    return pad(planes, (0, 0, left, left)) if left else planes.contiguous()


# Average pooling without overlap


def _windows_tile(
    x: Tensor, size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), *others: Any
) -> bool:
    """Return whether windows cover images once, and examples are innermost."""
    tiled = list(stride) in ([], list(size)) and not any(padding) and (len(others) < 3 or others[2] is None)
    if not tiled or x.ndim != 4 or len(size) != 2 or any(n % k for n, k in zip(x.shape[2:], size, strict=True)):
        return False
    return x.permute(1, 2, 3, 0).is_contiguous()


def _means(x: Tensor, size: Sequence[int]) -> Tensor:
    (n, c, h, w), (a, b) = x.shape, size
    lines = x.permute(1, 2, 3, 0).view(c, h // a, a, w * n)
    whole = _add_up([lines[:, :, i] for i in range(a)]).view(c, h // a, w // b, b, n)
    return (_add_up([whole[:, :, :, i] for i in range(b)]) * (1 / (a * b))).permute(3, 0, 1, 2)


def _spread(grad: Tensor, size: Sequence[int]) -> Tensor:
    (n, c, h, w), (a, b) = grad.shape, size
    each = grad.permute(1, 2, 3, 0) * (1 / (a * b))
    wide = each.unsqueeze(3).expand(c, h, w, b, n).reshape(c, h, 1, w * b * n)
    return wide.expand(c, h, a, w * b * n).reshape(c, h * a, w * b, n).permute(3, 0, 1, 2)


def _add_up(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
