"""FedSOL's weight perturbation along a gradient g, over the head, the body or all of the model.

    λ = |w − w_g| / ‖w − w_g‖₂          layer by layer; Λ all of them, or 1 where not adaptive              Eq. 7
    ε = ρ Λ ⊙ g / ‖g‖₂                  ‖g‖₂ over the perturbed part                                       Eq. 5, 8

0/0 is 0: norms below 1e-12 count as 1e-12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.layout import Block, Kind, Layout
from ..core.local_rule import Context

__all__ = ["Norm", "Perturbation", "Region"]

Region = Literal["head", "body", "all"]
Norm = Literal["layer", "dim0"]
_SMALL = 1e-12  # what a norm is divided by at least


@dataclass(frozen=True)
class Perturbation:
    """Settings of the perturbation of weights: `norm` is Eq. 7's, over a layer or over dimension 0 of it."""

    rho: float = 2.0
    adaptive: bool = True
    region: Region = "head"
    norm: Norm = "layer"

    def layers(self, layout: Layout) -> tuple[Block, ...]:
        """Return the layers of the region. Raise BadInput where there are none."""
        everything, head = self.region == "all", self.region == "head"
        chosen = tuple(b for b in layout.layers if everything or (b.kind is Kind.HEAD) == head)
        if not chosen:
            why = "all of the model is head" if self.region == "body" else "the model has no linear or conv map"
            raise BadInput(f"--method.part {self.region}: {why}; use --method.part all")
        return chosen

    def begin(self, layout: Layout) -> Context:
        """Return what the calls of a visit read, beside the received weights `w_g`."""
        layers = self.layers(layout)
        region = _merge_layers(layers)
        return {"layers": layers, "region": region, "rest": _complement(region, layout.n_params)}

    def __call__(self, w: Tensor, g: Tensor, context: Context) -> Tensor:
        """Return w + ε: w + ρ Λ ⊙ g / ‖g‖ in the region, w elsewhere (Eq. 5, 7, 8)."""
        share = self.rho / self.inside(g, context).norm().clamp_min(_SMALL)
        if not self.adaptive:
            out = torch.addcmul(w, g, share)
        else:
            out = w - context["w_g"]  # one buffer for Λ and the result: memory costs more than arithmetic
            for b in context["layers"]:
                layer = out[b.at].view(b.shape)
                length = layer.norm() if self.norm == "layer" else layer.norm(dim=0, keepdim=True)
                layer.abs_().mul_(share / length.clamp_min(_SMALL))
            torch.addcmul(w, out, g, out=out)
        for at in context["rest"]:
            out[at].copy_(w[at])
        return out

    def inside(self, vec: Tensor, context: Context) -> Tensor:
        """Return the region of a vector."""
        region: tuple[slice, ...] = context["region"]
        return vec[region[0]] if len(region) == 1 else torch.cat([vec[at] for at in region])


def _merge_layers(layers: Sequence[Block]) -> tuple[slice, ...]:
    """Return the slices of these layers, adjacent ones merged."""
    merged: list[slice] = []
    for b in layers:
        adjacent = merged and merged[-1].stop == b.start
        merged.append(slice(merged.pop().start, b.stop) if adjacent else b.at)
    return tuple(merged)


def _complement(slices: Sequence[slice], n: int) -> tuple[slice, ...]:
    """Return what of n numbers lies outside of these slices."""
    ends = [0, *(edge for at in slices for edge in (at.start, at.stop)), n]
    return tuple(slice(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b)
