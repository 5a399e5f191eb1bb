"""Orthogonal projections of flat vectors, layer by layer or whole, and OrthoFL's calibration (Eq. 3 to 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.layout import Layout
from ..core.tickets import Update
from ..vector.blocks import block_slices, blocks, blocks_reversed
from ..vector.fused import Pieces as Partition
from ..vector.fused import as_scalar, kernels_for, partition
from ..vector.pool import empty_pooled
from .step import mix_vectors

__all__ = ["Projection", "calibrate", "calibrate_and_mix", "orthogonal_component", "orthogonal_to_span", "stretches"]

Projection = Literal["layer", "full", "none"]


def calibrate(update: Update, weights: Tensor, *, layout: Layout, by: Projection = "layer") -> Tensor:
    """Return W_m(t+), the client's next start (OrthoFL, Eq. 4 to 7), from its update and W(t).

        Δ_m     = W_m(t) − W_m(τ+)                             update.delta                                       Eq. 4
        Δ       = W(t) − W(τ+)                                 weights − update.ticket.anchor                     Eq. 5
        Δ⊥_l    = Δ_l − (Δ_l·Δ_m,l / Δ_m,l·Δ_m,l) Δ_m,l        orthogonal_component(Δ, Δ_m)                       Eq. 6
        W_m(t+) = W_m(t) + Δ⊥                                  W_m(t) = update.ticket.sent + Δ_m                  Eq. 7

    No vector but the result is written: Eq. 6 and 7 together are W_m(τ+) + Δ_l + (1 − share_l) Δ_m,l in every layer l.
    Running statistics stay the client's.
    """
    start = empty_pooled(weights)
    _sweep(_Vectors(update, weights, start), layout, by)
    return start


def calibrate_and_mix(
    update: Update, weights: Tensor, beta_t: float, *, layout: Layout, by: Projection = "layer"
) -> tuple[Tensor, Tensor]:
    """Return W_m(t+) of `calibrate` and (1 − β_t) W(t) + β_t W_m(t) (Eq. 3), which reads the same vectors."""
    start, new = empty_pooled(weights), empty_pooled(weights)
    _sweep(_Vectors(update, weights, start, new, beta_t), layout, by)
    return start, new


class _Vectors(NamedTuple):
    """The vectors of one calibration; `start` and `new` are written, `new` only if there is one."""

    update: Update
    weights: Tensor  # W(t)
    start: Tensor  # W_m(t+)
    new: Tensor | None = None  # W(t+)
    beta_t: float = 0.0


def _sweep(c: _Vectors, layout: Layout, by: Projection) -> None:
    ticket, delta, n = c.update.ticket, c.update.delta, layout.n_params
    parts = stretches(layout, by)
    kernels = None if by == "none" else kernels_for(c.weights, delta, ticket.sent, ticket.anchor)
    if kernels is None:
        for stretch in parts:
            _calibrate_stretch(c, stretch, by)
    else:
        _calibrate_by_kernels(c, kernels, partition(*((s.start, s.stop) for s in parts)))
    torch.add(ticket.sent[n:], delta[n:], out=c.start[n:])
    if c.new is not None:
        mix_vectors(c.weights[n:], ticket.sent[n:], delta[n:], c.new[n:], c.beta_t)


def _calibrate_stretch(c: _Vectors, stretch: slice, by: Projection) -> None:
    """One layer, block by block; Δ is kept in `start` until the layer's inner products are known."""
    ticket, done, sums = c.update.ticket, [], []
    for at in block_slices(c.weights, stretch):
        own, sent = c.update.delta[at], ticket.sent[at]
        shift = torch.sub(c.weights[at], ticket.anchor[at], out=c.start[at])  # Eq. 5
        done.append((shift, own, sent))
        if by != "none":
            sums.append((torch.dot(shift, own), torch.dot(own, own)))
        if c.new is not None:
            mix_vectors(c.weights[at], sent, own, c.new[at], c.beta_t)  # Eq. 3
    rest = 1 - _share(sums) if sums else c.weights.new_ones(())
    for shift, own, sent in reversed(done):
        shift.addcmul_(own, rest).add_(sent)  # Eq. 6, 7


def _calibrate_by_kernels(c: _Vectors, kernels: Any, layers: Partition) -> None:
    """Calibrate all layers in two passes over memory; `start` holds Δ + W_m(τ+) until the inner products are known."""
    delta = c.update.delta
    vectors = (c.weights, c.update.ticket.anchor, delta, c.update.ticket.sent, c.start)
    if c.new is None:
        along, size = layers.sums(kernels.shift_weights, 2, *vectors)  # Eq. 5; Δ·Δ_m and Δ_m·Δ_m of every layer
    else:
        along, size = layers.sums(kernels.shift_and_mix, 2, *vectors, as_scalar(c.beta_t, c.weights), c.new)
    rest = 1 - np.divide(along, size, out=np.zeros_like(along), where=size > 0)
    layers.run(kernels.accumulate, c.start, delta, layers.each(rest, c.weights))  # Eq. 6, 7


def orthogonal_component(a: Tensor, b: Tensor, *, layout: Layout, by: Projection = "layer") -> Tensor:
    """Return a − (a·b / b·b) b (Eq. 6), the component of a that is orthogonal to b, in every layer.

    If b is 0 in a layer, a stays whole there; by="none" keeps all of a. Running statistics have no direction: the
    result is 0 there.
    """
    out = empty_pooled(a)
    out[layout.n_params :] = 0
    if by == "none":
        layout.params(out).copy_(layout.params(a))
        return out
    for at in stretches(layout, by):
        share = _share([(torch.dot(x, y), torch.dot(y, y)) for x, y in blocks(a[at], b[at])])
        for x, y, o in blocks_reversed(a[at], b[at], out[at]):
            torch.addcmul(x, y, share, value=-1, out=o)
    return out


def _share(sums: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return a·b / b·b from the inner products of blocks; 0 if b is 0."""
    along, size = (torch.stack(s).sum() if len(s) > 1 else s[0] for s in zip(*sums, strict=True))
    if size.device.type == "cpu":  # Python numbers are faster than tensors of one number
        a, b = along.item(), size.item()
        return torch.tensor(a / b if b > 0 else 0.0, dtype=size.dtype)
    return torch.where(size > 0, along / size.clamp_min(_tiny(size)), 0.0)


def orthogonal_to_span(a: Tensor, others: Sequence[Tensor], *, layout: Layout, by: Projection = "layer") -> Tensor:
    """Return a minus its projection onto the span of `others`."""
    if by == "none" or not others:
        return a
    out = a.clone()
    for at in stretches(layout, by):
        basis = torch.stack([o[at] for o in others]).double()
        gram = basis @ basis.T
        coefficients = torch.linalg.pinv(gram, hermitian=True, rtol=1e-10) @ (basis @ a[at].double())
        out[at] -= (coefficients @ basis).to(a.dtype)
    return out


def stretches(layout: Layout, by: Projection) -> Sequence[slice]:
    """Return the stretches that are projected apart: every layer, or all trained weights as one."""
    return layout.layer_slices if by == "layer" else (slice(0, layout.n_params),)


def _tiny(t: Tensor) -> float:
    return torch.finfo(t.dtype).tiny
