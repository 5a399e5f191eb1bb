"""Rewrites the convolutions of a traced step to Triton kernels (triton_kernels), for stacks of clients on a GPU.

The step of one client is rewritten with two operations that have batching rules: under vmap the clients are in their
first dimension, and one kernel serves all. Images are padded and permuted before as the kernel reads them, which a
compiler fuses with the operations that made them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import pad

from ..trace import trace_function
from .rewrite import ConvolutionRewrite, of_stack

__all__ = ["with_triton_convolutions"]

_OUTPUTS = 64  # outputs of a place that use a GPU best


def with_triton_convolutions(graph: GraphModule, args: Sequence[Tensor]) -> GraphModule:
    """Return the rewritten graph, equal up to rounding; the graph itself if no convolution can be rewritten."""
    made = _TritonConvolutions(graph, "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3")
    other = trace_function(made.run, args)
    return other if made.any else graph


@torch.library.custom_op("tarry::correlate", mutates_args=())
def _correlate(x: Tensor, w: Tensor, height: int, width: int, side: int, how: str) -> Tensor:
    from .triton_kernels import correlate

    return correlate(x, w, (height, width), side, how)


@_correlate.register_fake
def _(x: Tensor, w: Tensor, height: int, width: int, side: int, how: str) -> Tensor:  # noqa: ARG001
    return x.new_empty(*x.shape[:2], x.shape[2] - height + 1, (x.shape[3] - width) // side + 1, w.shape[1])


@torch.library.custom_op("tarry::correlate_filters", mutates_args=())
def _correlate_filters(x: Tensor, grad: Tensor, height: int, width: int, how: str) -> Tensor:
    from .triton_kernels import correlate_filters

    return correlate_filters(x, grad, (height, width), how)


@_correlate_filters.register_fake
def _(x: Tensor, grad: Tensor, height: int, width: int, how: str) -> Tensor:  # noqa: ARG001
    return x.new_empty(*grad.shape[:2], height * width * x.shape[1])


_correlate.register_vmap(of_stack(_correlate))
_correlate_filters.register_vmap(of_stack(_correlate_filters))


class _TritonConvolutions(ConvolutionRewrite):
    def __init__(self, graph: GraphModule, how: str):
        super().__init__(graph)
        self._how = how

    def filters(self, x: Tensor, grad: Tensor, size: tuple[int, int], padding: Sequence[int]) -> Tensor:
        dw: Tensor = _correlate_filters(_in_planes(x, padding)[None], _in_planes(grad, (0, 0))[None], *size, self._how)
        return dw.view(grad.shape[1], *size, x.shape[1]).permute(0, 3, 1, 2)

    def correlate(self, x: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
        """Return the correlation. With few filters, adjacent places are computed together: their inputs overlap."""
        outputs, _, height, width = weight.shape
        across = x.shape[3] + 2 * padding[1] - width + 1
        side = next(s for s in (4, 2, 1) if across % s == 0 and (s == 1 or s * outputs <= _OUTPUTS))
        images = _in_places(x, padding)
        each = weight.permute(0, 2, 3, 1)
        rows = torch.stack([pad(each, (0, 0, i, side - 1 - i)) for i in range(side)]).reshape(side * outputs, -1)
        out: Tensor = _correlate(images[None], rows.contiguous()[None], height, width + side - 1, side, self._how)
        return out.view(len(x), -1, across, outputs).permute(0, 3, 1, 2)


def _in_places(x: Tensor, padding: Sequence[int]) -> Tensor:
    """[examples, height, width, channels]"""
    up, left = padding
    return pad(x.permute(0, 2, 3, 1), (0, 0, left, left, up, up)).contiguous()


def _in_planes(x: Tensor, padding: Sequence[int]) -> Tensor:
    """[channels, height, width, examples], with examples padded to a multiple of 4 for aligned reads."""
    up, left = padding
    return pad(x.permute(1, 2, 3, 0), (0, -len(x) % 4, left, left, up, up)).contiguous()
