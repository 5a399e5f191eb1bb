"""A traced step in which convolutions are products of matrices, for a stack of clients on a GPU.

Stacked, a convolution with weights of everybody's own becomes one of many groups, for which cuDNN has slow kernels.
Here what a filter sees at each place is written out as a row, channels innermost; one product with the filters is all
that is left, and a stack of products is what a GPU does best. Backward passes come to the same: the weights' gradient
is a product with the same rows, the images' that of a convolution by the filters turned round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.nn.functional import pad

from .stack import traced

__all__ = ["unfolded"]

_aten = torch.ops.aten
_STRIDE = {_aten.convolution.default: 3, _aten.convolution_backward.default: 4}  # its place among the arguments


def unfolded(graph: GraphModule, args: Sequence[Tensor]) -> GraphModule:
    """The same numbers but for rounding; the graph itself where it has no convolution that can be written so."""
    made = _Unfolded(graph)
    other = traced(made.run, args)
    return other if made.any else graph


class _Unfolded(Interpreter):
    any = False

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in _STRIDE or args[0].ndim != 4 or not _plain(args[_STRIDE[target] :]):
            return super().call_function(target, args, kwargs)
        self.any = True
        if target is _aten.convolution.default:
            x, weight, bias, _, padding = args[:5]
            return _convolved(x, weight, padding, bias)
        grad, x, weight, sizes, _, padding = args[:6]
        return _backward(grad, x, weight, sizes, padding, args[-1])


def _plain(how: Sequence[Any]) -> bool:
    stride, _, dilation, transposed, _, groups = how[:6]
    return {*stride, *dilation, groups} == {1} and not transposed


def _rows(x: Tensor, height: int, width: int, padding: Sequence[int]) -> Tensor:
    """What a filter sees, place by place: [examples · places, height · width · channels]."""
    up, left = padding
    if up or left:
        x = pad(x, (left, left, up, up))
    seen = x.unfold(2, height, 1).unfold(3, width, 1)
    return seen.permute(0, 2, 3, 4, 5, 1).reshape(-1, height * width * x.shape[1])


def _filters(weight: Tensor) -> Tensor:
    """[outputs, height · width · inputs]"""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)


def _convolved(x: Tensor, weight: Tensor, padding: Sequence[int], bias: Tensor | None = None) -> Tensor:
    outputs, _, height, width = weight.shape
    out = _rows(x, height, width, padding) @ _filters(weight).T
    if bias is not None:
        out = out + bias
    high, wide = (n + 2 * p - k + 1 for n, p, k in zip(x.shape[2:], padding, (height, width), strict=True))
    return out.view(len(x), high, wide, outputs).permute(0, 3, 1, 2)


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, sizes: Sequence[int] | None, padding: Sequence[int], wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    outputs, inputs, height, width = weight.shape
    flat = grad.permute(0, 2, 3, 1).reshape(-1, outputs)
    of_x = of_weight = of_bias = None
    if wanted[0]:
        round_ = weight.flip(2, 3).transpose(0, 1)
        of_x = _convolved(grad, round_, (height - 1 - padding[0], width - 1 - padding[1]))
    if wanted[1]:
        found = flat.T @ _rows(x, height, width, padding)
        of_weight = found.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
    if wanted[2] and sizes is not None:
        of_bias = flat.sum(0)
    return of_x, of_weight, of_bias
