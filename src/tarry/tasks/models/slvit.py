"""SL-ViT, a vision transformer for small data sets. S. H. Lee, S. Lee, B. C. Song 2021, Vision Transformer for
Small-Size Datasets; FedSOL's Table 3.

    Shifted Patch Tokenization    an image and its four copies, shifted by half a patch along diagonals, are cut into
                                  patches together; LayerNorm and a linear map make a token of each
    Locality Self-Attention       softmax over q·k times a learned scale (one per head, initially 1/√d), and no token
                                  attends to itself

Otherwise ViT (Dosovitskiy et al. 2021): class token, learned positions, LayerNorm first, GELU. Sizes are those of Lee
et al.: 9 layers of 192 features, 12 heads of 16, 384 hidden units, patches of 4 pixels for 32×32 images, 8 for 64×64;
no dropout. FedSOL's text gives none; its public code has patch=8, head=64, hidden=192, one scale a layer, and copies
shifted by one pixel up, down, left and right. Scales and copies are those of Lee et al. here. As in FedSOL, smaller
images are enlarged to 32×32.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from ...core.errors import BadInput
from ...core.parameter import AtMost
from .input_checks import Enlarged, check_at_least, check_image_shape
from .registry import Build, ExampleShape, models

__all__ = ["SLViT"]

_WIDTH, _HEADS = 192, 12


class SLViT(nn.Module):
    """Images of `shape` (channels, height, width) to `classes` outputs."""

    smallest = 16

    def __init__(
        self,
        shape: ExampleShape = (3, 32, 32),
        classes: int = 10,
        *,
        patch: int = 4,
        depth: int = 9,
        head: int = 16,
        hidden: int = 384,
    ):
        super().__init__()
        self.enlarged = Enlarged(shape, 32)
        h, w = self.enlarged.sides
        self.tokens = _ShiftedPatches(shape[0], patch, _WIDTH)
        self.first = nn.Parameter(torch.randn(1, 1, _WIDTH))
        self.places = nn.Parameter(torch.randn(1, 1 + (h // patch) * (w // patch), _WIDTH))
        self.layers = nn.Sequential(*(_TransformerLayer(_WIDTH, _HEADS, head, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(self.enlarged(x))
        z = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.places
        out: Tensor = self.head(self.norm(self.layers(z)[:, 0]))
        return out


class _ShiftedPatches(nn.Module):
    def __init__(self, channels: int, patch: int, width: int):
        super().__init__()
        self.patch = patch
        self.norm = nn.LayerNorm(5 * channels * patch**2)
        self.embed = nn.Linear(5 * channels * patch**2, width)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        p, s = self.patch, self.patch // 2
        wide = pad(x, (s, s, s, s))
        shifted = [wide[..., i : i + h, j : j + w] for i in (0, 2 * s) for j in (0, 2 * s)]
        patches = torch.cat([x, *shifted], 1).reshape(n, -1, h // p, p, w // p, p)
        out: Tensor = self.embed(self.norm(patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)))
        return out


class _TransformerLayer(nn.Module):
    def __init__(self, width: int, heads: int, head: int, hidden: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = _LocalAttention(width, heads, head)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.down(gelu(self.up(self.norm(x))))
        return out


class _LocalAttention(nn.Module):
    def __init__(self, width: int, heads: int, head: int):
        super().__init__()
        self.heads = heads
        self.scale = nn.Parameter(torch.full((heads,), head**-0.5))
        self.qkv = nn.Linear(width, 3 * heads * head, bias=False)
        self.out = nn.Linear(heads * head, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        dots = q @ k.transpose(-1, -2) * self.scale[:, None, None]
        itself = torch.eye(t, dtype=torch.bool, device=x.device)
        share = dots.masked_fill(itself, float("-inf")).softmax(-1)
        out: Tensor = self.out((share @ v).transpose(1, 2).reshape(n, t, -1))
        return out


@models.register("sl-vit", paper="Lee et al. 2021, Vision Transformer for Small-Size Datasets")
def _slvit(
    shape: ExampleShape,
    classes: int,
    *,
    patch: Annotated[int | None, "Side of a patch in pixels; none: an eighth of the image's side"] = None,
    depth: Annotated[int, "Number of layers", AtMost(1000)] = 9,
    head: Annotated[int, "Number of features of each of the 12 heads"] = 16,
    hidden: Annotated[int, "Number of hidden units of a layer"] = 384,
) -> Build:
    """A vision transformer for small data sets, used by FedSOL; its public code has patch 8, head 64, hidden 192."""
    for flag, value in (("depth", depth), ("head", head), ("hidden", hidden)):
        check_at_least(flag, value, 1)
    sides = Enlarged(check_image_shape("sl-vit", shape, SLViT.smallest), 32).sides
    size = min(sides) // 8 if patch is None else patch
    if size < 2 or sides[0] % size or sides[1] % size:
        raise BadInput(
            f"--task.patch {size}: must be 2 or more and divide the sides of the images, {sides[0]} and {sides[1]}"
        )
    return partial(SLViT, shape, classes, patch=size, depth=depth, head=head, hidden=hidden)
