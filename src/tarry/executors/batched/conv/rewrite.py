"""Base of the rewrites of convolutions: which ones are rewritten, and how their backward passes are computed.

The gradient of an image is a convolution of the gradient of the outputs with flipped filters. So a backend needs two
operations: outputs from images and filters, and filter gradients from images and output gradients. Convolutions with
strides, dilation or groups, or not in single precision, stay as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter

__all__ = ["ConvolutionRewrite", "of_stack"]

_aten = torch.ops.aten
_STRIDE = {
    _aten.convolution.default: 3,
    _aten.convolution_backward.default: 4,
}  # place of the stride among the arguments
_MOST = 2**31  # numbers of a client: kernels count in 32 bits


class ConvolutionRewrite(Interpreter, ABC):
    """Interprets a graph with other convolutions; `any` is True afterwards if there was one."""

    any = False

    @abstractmethod
    def correlate(self, x: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
        """[examples, outputs, down, across]"""

    @abstractmethod
    def filters(self, x: Tensor, grad: Tensor, size: tuple[int, int], padding: Sequence[int]) -> Tensor:
        """[outputs, inputs, height, width]"""

    def takes(self, weight: Tensor) -> bool:  # noqa: ARG002 - all, unless a subclass says otherwise
        """Return whether the other convolution is faster for such filters."""
        return True

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in _STRIDE:
            return super().call_function(target, args, kwargs)
        x, weight = args[0:2] if target is _aten.convolution.default else args[1:3]
        if not _is_plain(x, weight, args[_STRIDE[target] :]) or not self.takes(weight):
            return super().call_function(target, args, kwargs)
        self.any = True
        padding = args[_STRIDE[target] + 1]
        if target is _aten.convolution.default:
            return self._forward(x, weight, args[2], padding)
        return self._backward(args[0], x, weight, padding, args[3], args[-1])

    def _forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int]) -> Tensor:
        out = self.correlate(x, weight, padding)
        return out if bias is None else out + bias.view(-1, 1, 1)

    def _backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, padding: Sequence[int], sizes: Any, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        height, width = weight.shape[2:]
        dx = dw = None
        if wanted[0]:
            margin = [height - 1 - padding[0], width - 1 - padding[1]]
            dx = self.correlate(grad, weight.flip(2, 3).transpose(0, 1), margin)
        if wanted[1]:
            dw = self.filters(x, grad, (height, width), padding)
        return dx, dw, grad.sum((0, 2, 3)) if wanted[2] and sizes is not None else None


def of_stack(op: Any) -> Any:
    """Return a batching rule for an operation of two tensors with clients first: a stack of stacks is one stack."""

    def rule(info: Any, dims: tuple[int | None, ...], a: Tensor, b: Tensor, *how: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        both = (t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip((a, b), dims, strict=False))
        out = op(*(t.reshape(-1, *t.shape[2:]).contiguous() for t in both), *how)
        return out.view(size, -1, *out.shape[1:]), 0

    return rule


def _is_plain(x: Tensor, weight: Tensor, how: Sequence[Any]) -> bool:
    stride, padding, dilation, transposed, _, groups = how[:6]
    if x.ndim != 4 or x.dtype != torch.float32 or transposed or {*stride, *dilation, groups} != {1}:
        return False
    reach = all(p < k for p, k in zip(padding, weight.shape[2:], strict=True))
    most = len(x) * prod(n + 2 * k for n, k in zip(x.shape[2:], weight.shape[2:], strict=True)) * max(weight.shape[:2])
    return reach and most < _MOST
