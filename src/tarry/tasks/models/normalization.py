"""Normalisation layers.

GroupNorm (Wu & He 2018) looks at one example at a time: nothing but weights has to travel. BatchNorm (Ioffe & Szegedy
2015) keeps running statistics, which travel and are averaged with the weights but are no direction (core.layout).
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import nn

__all__ = ["NormKind", "norm_layer"]

NormKind = Annotated[Literal["group", "batch"], "group normalisation, or batch normalisation, whose statistics travel"]
_GROUPS, _FEWEST = 32, 4


def norm_layer(kind: str, channels: int, *, dims: int = 2) -> nn.Module:
    """Of so many channels; 32 groups, or as many as divide them and leave each four channels or more.

    Where a picture has shrunk to one pixel, two channels a group would come out as a sign each, and nothing is learnt.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels) if dims == 2 else nn.BatchNorm1d(channels)
    most = max(1, min(_GROUPS, channels // _FEWEST))
    return nn.GroupNorm(next(g for g in range(most, 0, -1) if channels % g == 0), channels)
