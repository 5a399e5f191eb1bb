"""Orthogonal projections of flat vectors, layer by layer or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.layout import Layout
from ..core.tickets import Update
from ..vector.blocks import block_slices, blocks, blocks_reversed
from ..vector.fused import Pieces, as_scalar, kernels_for, partition
from ..vector.pool import empty_pooled
from .step import mixed

__all__ = ["Projection", "complement", "reject", "shifted_beside"]

Projection = Literal["layer", "full", "none"]


def reject(a: Tensor, b: Tensor, *, layout: Layout, by: Projection = "layer") -> Tensor:
    """a − (a·b / b·b) b: what of a is orthogonal to b. Where b is 0, a stays whole; `none` keeps a.

    Running statistics are not a direction: there the answer is 0.
    """
    out = empty_pooled(a)
    out[layout.n_params :] = 0
    if by == "none":
        layout.params(out).copy_(layout.params(a))
        return out
    for at in _stretches(layout, by):
        share = _share([(torch.dot(x, y), torch.dot(y, y)) for x, y in blocks(a[at], b[at])])
        for x, y, o in blocks_reversed(a[at], b[at], out[at]):
            torch.addcmul(x, y, share, value=-1, out=o)
    return out


def shifted_beside(
    own: Update, here: Tensor, *, layout: Layout, by: Projection = "layer", mixing: float | None = None
) -> tuple[Tensor, Tensor | None]:
    """own.local + reject(here − own.ticket.anchor; own.delta), with no vector in between.

    With `mixing` also here + mixing (own.local − here), for which the same vectors are read.
    """
    ticket, delta, n = own.ticket, own.delta, layout.n_params
    start, new = empty_pooled(here), None if mixing is None else empty_pooled(here)
    stretches = _stretches(layout, by)
    if by != "none" and (kernels := kernels_for(here, delta, ticket.sent, ticket.anchor)) is not None:
        _in_two_passes(kernels, own, here, partition(*((s.start, s.stop) for s in stretches)), start, mixing, new)
    else:
        _in_stretches(own, here, stretches, by, start, mixing, new)
    torch.add(ticket.sent[n:], delta[n:], out=start[n:])
    if new is not None and mixing is not None:
        mixed(here[n:], ticket.sent[n:], delta[n:], new[n:], mixing)
    return start, new


def _in_two_passes(
    kernels: Any, own: Update, here: Tensor, whole: Pieces, start: Tensor, mixing: float | None, new: Tensor | None
) -> None:
    """The shift, on top of what was sent, waits in the answer's place until a layer's products are known."""
    read = (here, own.ticket.anchor, own.delta, own.ticket.sent, start)
    if new is None or mixing is None:
        along, size = whole.sums(kernels.shifted, 2, *read)
    else:
        along, size = whole.sums(kernels.shifted_and_mixed, 2, *read, as_scalar(mixing, here), new)
    rest = 1 - np.divide(along, size, out=np.zeros_like(along), where=size > 0)
    whole.run(kernels.added, start, own.delta, whole.each(rest, here))


def _in_stretches(
    own: Update,
    here: Tensor,
    stretches: Sequence[slice],
    by: Projection,
    start: Tensor,
    mixing: float | None,
    new: Tensor | None,
) -> None:
    """The shift waits in the answer's place until a layer's products are known."""
    ticket, delta = own.ticket, own.delta
    for whole in stretches:
        seen, sums = [], []
        for at in block_slices(here, whole):
            o, y, sent = torch.sub(here[at], ticket.anchor[at], out=start[at]), delta[at], ticket.sent[at]
            seen.append((o, y, sent))
            if by != "none":
                sums.append((torch.dot(o, y), torch.dot(y, y)))
            if new is not None and mixing is not None:
                mixed(here[at], sent, y, new[at], mixing)
        rest = 1 - _share(sums) if sums else here.new_ones(())
        for o, y, sent in reversed(seen):
            o.addcmul_(y, rest).add_(sent)


def _share(sums: list[tuple[Tensor, Tensor]]) -> Tensor:
    """a·b / b·b from the products of stretches; 0 where b is 0."""
    along, size = (torch.stack(s).sum() if len(s) > 1 else s[0] for s in zip(*sums, strict=True))
    if size.device.type == "cpu":  # numbers cost less than tensors of one number
        a, b = along.item(), size.item()
        return torch.tensor(a / b if b > 0 else 0.0, dtype=size.dtype)
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
    return [b.at for b in layout.layers] if by == "layer" else [slice(0, layout.n_params)]


def _tiny(t: Tensor) -> float:
    return torch.finfo(t.dtype).tiny
