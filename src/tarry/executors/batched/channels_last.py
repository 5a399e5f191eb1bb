"""Channels-last order of flat vectors: convolutions as tensor cores read them, with the inputs of an output adjacent.

    order of a layout       outputs, inputs, height, width
    channels-last order     outputs, height, width, inputs

While clients are trained, vectors may be in channels-last order: views of them are then convolutions with channels
last, and so are their gradients, without a conversion at every step. Blocks stay where they are, so elementwise and
layer-wise operations are unaffected. A tensor is taken for a flat vector, or several, where its last dimension is as
long as the trained part or the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.layout import Block, Layout

__all__ = ["ChannelsLastOrder", "flat", "is_worthwhile", "view"]

_FEWEST = 16  # channels, from which on it is faster


class ChannelsLastOrder:
    """Converts stacks of vectors to channels-last order and back; the first dimension is of clients."""

    def __init__(self, layout: Layout, device: torch.device):
        places = torch.arange(layout.size, device=device)
        self._lengths = (layout.n_params, layout.size)
        turned = [flat(places[b.at].view(b.shape)) for b in layout.layers]
        self._there = torch.cat([*turned, places[layout.n_params :]])
        self._back = torch.argsort(self._there)

    def to_inner(self, stack: Tensor) -> Tensor:
        return self._reorder(stack, self._there)

    def to_layout(self, stack: Tensor) -> Tensor:
        return self._reorder(stack, self._back)

    def _reorder(self, stack: Tensor, places: Tensor) -> Tensor:
        if stack.ndim < 2 or stack.shape[-1] not in self._lengths:
            return stack
        return stack.index_select(-1, places[: stack.shape[-1]])


def view(part: Tensor, block: Block) -> Tensor:
    """Return a block of a vector in channels-last order, in the shape of the block."""
    if len(block.shape) != 4:
        return part.view(block.shape)
    outputs, inputs, height, width = block.shape
    return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def flat(tensor: Tensor) -> Tensor:
    """Flatten into channels-last order; without a copy where channels are last already."""
    return (tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor).reshape(-1)


def is_worthwhile(layout: Layout) -> bool:
    """Return whether a convolution has enough channels."""
    return any(len(b.shape) == 4 and min(b.shape[:2]) >= _FEWEST for b in layout.layers)
