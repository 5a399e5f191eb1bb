"""Orthogonal projections of flat vectors, layer by layer or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.layout import Layout
from ..core.ticket import Update
from ..core.vector import back, fresh, swept

__all__ = ["Projection", "complement", "reject", "shifted_beside"]

Projection = Literal["layer", "full", "none"]


def reject(a: Tensor, b: Tensor, *, layout: Layout, by: Projection = "layer") -> Tensor:
    """a − (a·b / b·b) b: what of a is orthogonal to b. Where b is 0, a stays whole; `none` keeps a.

    Running statistics are not a direction: there the answer is 0.
    """
    out = fresh(a)
    out[layout.n_params :] = 0
    if by == "none":
        layout.params(out).copy_(layout.params(a))
        return out
    for at in _stretches(layout, by):
        share = _share([(torch.dot(x, y), torch.dot(y, y)) for x, y in swept(a[at], b[at])])
        for x, y, o in back(a[at], b[at], out[at]):
            torch.addcmul(x, y, share, value=-1, out=o)
    return out


def shifted_beside(own: Update, here: Tensor, *, layout: Layout, by: Projection = "layer") -> Tensor:
    """own.local + reject(here − own.ticket.anchor; own.delta), with no vector in between.

    The shift waits in the answer's place until a layer's products are known. Layers are gone through from the last: the
    end of the vectors is what a step over all of them has just left in the cache.
    """
    ticket, n, out = own.ticket, layout.n_params, fresh(here)
    torch.add(ticket.sent[n:], own.delta[n:], out=out[n:])
    if by == "none":
        for x, anchor, y, sent, o in swept(*map(layout.params, (here, ticket.anchor, own.delta, ticket.sent, out))):
            torch.sub(x, anchor, out=o).add_(y).add_(sent)
        return out
    for at in reversed(_stretches(layout, by)):
        sums = []
        for x, anchor, y, o in swept(here[at], ticket.anchor[at], own.delta[at], out[at]):
            torch.sub(x, anchor, out=o)
            sums.append((torch.dot(o, y), torch.dot(y, y)))
        rest = 1 - _share(sums)
        for y, sent, o in back(own.delta[at], ticket.sent[at], out[at]):
            o.addcmul_(y, rest).add_(sent)
    return out


def _share(sums: list[tuple[Tensor, Tensor]]) -> Tensor:
    """a·b / b·b from the products of stretches; 0 where b is 0."""
    along, size = (torch.stack(s).sum() if len(s) > 1 else s[0] for s in zip(*sums, strict=True))
    return torch.where(size > 0, along / size.clamp_min(_tiny(size)), 0.0)


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
