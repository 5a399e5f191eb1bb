"""Flat vectors in which convolutions lie as a GPU's tensor cores take them: an output's inputs next to each other.

    a layout's order     outputs, inputs, height, width
    inner                outputs, height, width, inputs

While clients are trained, a vector may be in inner order: views of it are then convolutions with their channels last,
and so are their gradients, and nothing has to be turned round at every step. Blocks stay where they are, so whatever is
done number by number or layer by layer comes to the same. A tensor is a flat vector, or some of them, where its last
dimension is as long as the trained part or the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.layout import Block, Layout

__all__ = ["ChannelsLastOrder", "flat", "is_worthwhile", "view"]

_FEWEST = 16  # channels from which on it is worth it


class ChannelsLastOrder:
    """Stacks of tensors to and from the inner order; the first dimension is of clients."""

    def __init__(self, layout: Layout, device: torch.device):
        places = torch.arange(layout.size, device=device)
        self._lengths = (layout.n_params, layout.size)
        turned = [flat(places[b.at].view(b.shape)) for b in layout.layers]
        self._there = torch.cat([*turned, places[layout.n_params :]])
        self._back = torch.argsort(self._there)

    def to_inner(self, stack: Tensor) -> Tensor:
        return self._turned(stack, self._there)

    def to_layout(self, stack: Tensor) -> Tensor:
        return self._turned(stack, self._back)

    def _turned(self, stack: Tensor, places: Tensor) -> Tensor:
        if stack.ndim < 2 or stack.shape[-1] not in self._lengths:
            return stack
        return stack.index_select(-1, places[: stack.shape[-1]])


def view(part: Tensor, block: Block) -> Tensor:
    """A block's stretch of a vector in inner order, in the block's shape."""
    if len(block.shape) != 4:
        return part.view(block.shape)
    outputs, inputs, height, width = block.shape
    return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def flat(tensor: Tensor) -> Tensor:
    """The stretch of a vector in inner order; without a copy, where channels are last."""
    return (tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor).reshape(-1)


def is_worthwhile(layout: Layout) -> bool:
    """Whether there is a convolution of channels enough."""
    return any(len(b.shape) == 4 and min(b.shape[:2]) >= _FEWEST for b in layout.layers)
