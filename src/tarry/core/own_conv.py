"""A traced step whose convolutions are ours (core.conv_kernels), for stacks of clients on a GPU.

The step of one client is written anew with two operations that know of stacks: under vmap the clients come to lie in
their first dimension, and one kernel serves all of them. Before that images are padded and laid out as the kernel reads
them, which a compiler joins with what made them. An image's gradient is a convolution of the outputs' with the filters
turned round. What is not plain (strides, dilation, groups) or not in single precision stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.nn.functional import pad

from .stack import traced

__all__ = ["with_own_convolutions"]

_aten = torch.ops.aten
_STRIDE = {_aten.convolution.default: 3, _aten.convolution_backward.default: 4}  # its place among the arguments
_MOST = 2**31  # numbers of a client's: kernels count them in 32 bits
_OUTPUTS = 64  # of a place, for a GPU to be at its best


def with_own_convolutions(graph: GraphModule, args: Sequence[Tensor]) -> GraphModule:
    """The same numbers but for rounding; the graph itself where it has no convolution that can be written so."""
    made = _Own(graph, "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3")
    other = traced(made.run, args)
    return other if made.any else graph


@torch.library.custom_op("tarry::correlate", mutates_args=())
def _correlate(x: Tensor, w: Tensor, height: int, width: int, side: int, how: str) -> Tensor:
    from .conv_kernels import correlate

    return correlate(x, w, (height, width), side, how)


@_correlate.register_fake
def _(x: Tensor, w: Tensor, height: int, width: int, side: int, how: str) -> Tensor:  # noqa: ARG001
    return x.new_empty(*x.shape[:2], x.shape[2] - height + 1, (x.shape[3] - width) // side + 1, w.shape[1])


@torch.library.custom_op("tarry::correlate_filters", mutates_args=())
def _correlate_filters(x: Tensor, grad: Tensor, height: int, width: int, how: str) -> Tensor:
    from .conv_kernels import correlate_filters

    return correlate_filters(x, grad, (height, width), how)


@_correlate_filters.register_fake
def _(x: Tensor, grad: Tensor, height: int, width: int, how: str) -> Tensor:  # noqa: ARG001
    return x.new_empty(*grad.shape[:2], height * width * x.shape[1])


def _of_stack(op: Any) -> Any:
    """A stack of stacks is one stack."""

    def rule(info: Any, dims: tuple[int | None, ...], a: Tensor, b: Tensor, *how: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        both = (t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip((a, b), dims, strict=False))
        out = op(*(t.reshape(-1, *t.shape[2:]).contiguous() for t in both), *how)
        return out.view(size, -1, *out.shape[1:]), 0

    return rule


_correlate.register_vmap(_of_stack(_correlate))
_correlate_filters.register_vmap(_of_stack(_correlate_filters))


class _Own(Interpreter):
    any = False

    def __init__(self, graph: GraphModule, how: str):
        super().__init__(graph)
        self._how = how

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in _STRIDE:
            return super().call_function(target, args, kwargs)
        x, weight = args[0:2] if target is _aten.convolution.default else args[1:3]
        if not _plain(x, weight, args[_STRIDE[target] :]):
            return super().call_function(target, args, kwargs)
        self.any = True
        padding = args[_STRIDE[target] + 1]
        if target is _aten.convolution.default:
            return self._forward(x, weight, args[2], padding)
        return self._backward(args[0], x, weight, padding, args[3], args[-1])

    def _forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int]) -> Tensor:
        out = self._correlated(x, weight, padding)
        return out if bias is None else out + bias.view(-1, 1, 1)

    def _backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, padding: Sequence[int], sizes: Any, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        outputs, inputs, height, width = weight.shape
        dx = dw = None
        if wanted[0]:
            margin = [height - 1 - padding[0], width - 1 - padding[1]]
            dx = self._correlated(grad, weight.flip(2, 3).transpose(0, 1), margin)
        if wanted[1]:
            dw = _correlate_filters(
                _in_planes(x, padding)[None], _in_planes(grad, (0, 0))[None], height, width, self._how
            )
            dw = dw.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return dx, dw, grad.sum((0, 2, 3)) if wanted[2] and sizes is not None else None

    def _correlated(self, x: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
        """Places next to each other are taken as one where filters are few: what they see is mostly the same."""
        outputs, _, height, width = weight.shape
        across = x.shape[3] + 2 * padding[1] - width + 1
        side = next(s for s in (4, 2, 1) if across % s == 0 and (s == 1 or s * outputs <= _OUTPUTS))
        images = _in_places(x, padding)
        each = weight.permute(0, 2, 3, 1)
        rows = torch.stack([pad(each, (0, 0, i, side - 1 - i)) for i in range(side)]).reshape(side * outputs, -1)
        out: Tensor = _correlate(images[None], rows.contiguous()[None], height, width + side - 1, side, self._how)
        return out.view(len(x), -1, across, outputs).permute(0, 3, 1, 2)


def _plain(x: Tensor, weight: Tensor, how: Sequence[Any]) -> bool:
    stride, padding, dilation, transposed, _, groups = how[:6]
    if x.ndim != 4 or x.dtype != torch.float32 or transposed or {*stride, *dilation, groups} != {1}:
        return False
    reach = all(p < k for p, k in zip(padding, weight.shape[2:], strict=True))
    most = len(x) * prod(n + 2 * k for n, k in zip(x.shape[2:], weight.shape[2:], strict=True)) * max(weight.shape[:2])
    return reach and most < _MOST


def _in_places(x: Tensor, padding: Sequence[int]) -> Tensor:
    """[examples, height, width, channels]"""
    up, left = padding
    return pad(x.permute(0, 2, 3, 1), (0, 0, left, left, up, up)).contiguous()


def _in_planes(x: Tensor, padding: Sequence[int]) -> Tensor:
    """[channels, height, width, examples], of these so many that reads do not straddle."""
    up, left = padding
    return pad(x.permute(1, 2, 3, 0), (0, -len(x) % 4, left, left, up, up)).contiguous()
