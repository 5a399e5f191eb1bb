"""Normalization layers.

GroupNorm (Wu & He 2018) normalizes each example by itself, so only weights are sent. BatchNorm (Ioffe & Szegedy 2015)
keeps running statistics, which are sent and averaged with the weights but are not part of an update's direction
(core.layout).
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import nn

__all__ = ["NormKind", "norm_layer"]

NormKind = Annotated[Literal["group", "batch"], "Group normalization, or batch normalization with running statistics"]
_GROUPS, _FEWEST = 32, 4


def norm_layer(kind: str, channels: int, *, dims: int = 2) -> nn.Module:
    """Return a normalization layer for this many channels.

    GroupNorm has 32 groups, or fewer so that they divide the channels and each has at least four. On an image of one
    pixel, groups of two channels would yield only a sign each, and nothing could be learned.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels) if dims == 2 else nn.BatchNorm1d(channels)
    most = max(1, min(_GROUPS, channels // _FEWEST))
    return nn.GroupNorm(next(g for g in range(most, 0, -1) if channels % g == 0), channels)
