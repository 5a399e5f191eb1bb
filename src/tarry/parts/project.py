"""Orthogonal projections of flat vectors, layer by layer or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.layout import Layout

__all__ = ["Projection", "complement", "reject"]

Projection = Literal["layer", "full", "none"]


def reject(a: Tensor, b: Tensor, *, layout: Layout, by: Projection = "layer") -> Tensor:
    """a − (a·b / b·b) b: what of a is orthogonal to b. Where b is 0, a stays whole; `none` keeps a.

    Running statistics are not a direction: there the answer is 0.
    """
    out = torch.zeros_like(a)
    if by == "none":
        layout.params(out).copy_(layout.params(a))
        return out
    for at in _stretches(layout, by):
        x, y = a[at], b[at]
        yy = torch.dot(y, y)
        coefficient = torch.where(yy > 0, torch.dot(x, y) / yy.clamp_min(_tiny(yy)), torch.zeros_like(yy))
        torch.sub(x, y * coefficient, out=out[at])
    return out


def complement(a: Tensor, others: Sequence[Tensor], *, layout: Layout, by: Projection = "layer") -> Tensor:
    """What of a is orthogonal to every one of `others`: a minus its projection onto their span."""
    if by == "none" or not others:
        return a
    out = a.clone()
    for at in _stretches(layout, by):
        basis = torch.stack([o[at] for o in others]).double()
        gram = basis @ basis.T
        coefficients = torch.linalg.pinv(gram, hermitian=True, rtol=1e-10) @ (basis @ a[at].double())
        out[at] -= (coefficients @ basis).to(a.dtype)
    return out


def _stretches(layout: Layout, by: Projection) -> list[slice]:
    return [slice(0, layout.n_params)] if by == "full" else [b.at for b in layout.layers]


def _tiny(t: Tensor) -> float:
    return torch.finfo(t.dtype).tiny
