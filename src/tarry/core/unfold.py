"""A traced step in which convolutions are products of matrices, for programs that are compiled for a GPU.

Stacked, a convolution with weights of everybody's own becomes one of many groups, for which cuDNN has slow kernels.
Here what a filter sees at each place is written out as a row, channels innermost; one product with the filters is all
that is left, and a stack of products is what a GPU does best. Backward passes come to the same: the weights' gradient
is a product with the same rows, which are kept for it; the images' is a product with the filters, row by row, and a sum
of what each place got from the filters that saw it, which a compiler makes one pass of.
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

    def __init__(self, graph: GraphModule):
        super().__init__(graph)
        self._seen: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}  # rows, with what they are rows of

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in _STRIDE or args[0].ndim != 4 or not _plain(args[_STRIDE[target] :]):
            return super().call_function(target, args, kwargs)
        self.any = True
        if target is _aten.convolution.default:
            x, weight, bias, _, padding = args[:5]
            return _convolved(self._rows(x, weight, padding), x, weight, padding, bias)
        grad, x, weight, sizes, _, padding = args[:6]
        wanted = args[-1]
        flat = grad.permute(0, 2, 3, 1).reshape(-1, len(weight))
        return (
            _folded(flat @ _filters(weight), x, weight, padding) if wanted[0] else None,
            _shaped(flat.T @ self._rows(x, weight, padding), weight) if wanted[1] else None,
            flat.sum(0) if wanted[2] and sizes is not None else None,
        )

    def _rows(self, x: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
        """What a filter sees, place by place: [examples · places, height · width · channels]."""
        height, width = weight.shape[2:]
        key = (id(x), height, width, *padding)
        if key not in self._seen:
            seen = _padded(x, padding).unfold(2, height, 1).unfold(3, width, 1)
            self._seen[key] = seen.permute(0, 2, 3, 4, 5, 1).reshape(-1, height * width * x.shape[1]), x
        return self._seen[key][0]


def _plain(how: Sequence[Any]) -> bool:
    stride, _, dilation, transposed, _, groups = how[:6]
    return {*stride, *dilation, groups} == {1} and not transposed


def _padded(x: Tensor, padding: Sequence[int]) -> Tensor:
    up, left = padding
    return pad(x, (left, left, up, up)) if up or left else x


def _filters(weight: Tensor) -> Tensor:
    """[outputs, height · width · inputs]"""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)


def _shaped(filters: Tensor, weight: Tensor) -> Tensor:
    """As the weights are."""
    outputs, inputs, height, width = weight.shape
    return filters.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def _places(x: Tensor, weight: Tensor, padding: Sequence[int]) -> list[int]:
    """How many there are for a filter, down and across."""
    return [n + 2 * p - k + 1 for n, p, k in zip(x.shape[2:], padding, weight.shape[2:], strict=True)]


def _convolved(rows: Tensor, x: Tensor, weight: Tensor, padding: Sequence[int], bias: Tensor | None) -> Tensor:
    out = rows @ _filters(weight).T
    if bias is not None:
        out = out + bias
    return out.view(len(x), *_places(x, weight, padding), len(weight)).permute(0, 3, 1, 2)


def _folded(rows: Tensor, x: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
    """What came to each place of the images from all the rows that it is in."""
    (_, inputs, height, width), (down, across), (up, left) = weight.shape, x.shape[2:], padding
    at = rows.view(len(x), *_places(x, weight, padding), height, width, inputs)
    parts = [
        pad(at[:, :, :, i, j], (0, 0, j, width - 1 - j, i, height - 1 - i)) for i in range(height) for j in range(width)
    ]
    total: Tensor = sum(parts[1:], parts[0])
    return total[:, up : up + down, left : left + across].permute(0, 3, 1, 2)
