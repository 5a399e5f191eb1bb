"""Losses on a plane through weight space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core import rng
from ...core.layout import Layout
from ...core.rng import Stream
from .series import short

__all__ = ["filter_normalized", "grid", "random_directions"]


def grid(
    loss: Callable[[Tensor], float], origin: Tensor, u: Tensor, v: Tensor, xs: Sequence[float], ys: Sequence[float]
) -> list[list[float]]:
    """loss(origin + x u + y v), a row for every y; the origin is a whole vector, directions are of trained weights."""

    def at(x: float, y: float) -> Tensor:
        there = origin.clone()
        there[: len(u)].add_(u, alpha=x).add_(v, alpha=y)
        return there

    return [[short(loss(at(x, y))) for x in xs] for y in ys]


def filter_normalized(direction: Tensor, weights: Tensor, layout: Layout) -> Tensor:
    """Return the direction with each filter (row) scaled to the norm of the weights' own; 0 for vectors (Li 2018)."""
    out = torch.zeros_like(direction)
    for b in layout.layers:
        if len(b.shape) < 2:
            continue
        d, w = (t[b.at].view(b.shape[0], -1) for t in (direction, weights))
        size = w.norm(dim=1, keepdim=True) / d.norm(dim=1, keepdim=True).clamp_min(torch.finfo(d.dtype).tiny)
        out[b.at] = (d * size).reshape(-1)
    return out


def random_directions(weights: Tensor, layout: Layout, seed: int) -> tuple[Tensor, Tensor]:
    """Two Gaussian directions, filter by filter as long as the weights."""
    noise: Any = rng.generator(rng.key(seed, Stream.DATA, 1)).standard_normal((2, layout.n_params))
    a, b = torch.from_numpy(noise.astype(np.float32)).to(weights)
    own = layout.params(weights)
    return filter_normalized(a, own, layout), filter_normalized(b, own, layout)
