"""Sharpness-aware steps: the gradient is taken at w + ε, where the loss in a neighborhood of w is largest.

    SAM    ε = ρ g / ‖g‖                           Foret et al. 2021, Eq. 2 with p = 2
    ASAM   ε = ρ T² g / ‖T g‖,  T = |w| + η        Kwon et al. 2021; T element by element

No gradient goes through ε. Norms below 1e-12 count as 1e-12: of a gradient that is 0, or as good as, nothing is made.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ascend", "ascended_adaptively"]

_SMALL = 1e-12  # what a norm is divided by at least


def ascend(w: Tensor, g: Tensor, *, rho: float) -> Tensor:
    """w + ρ g / ‖g‖."""
    size = torch.linalg.vector_norm(g).clamp_min(_SMALL)
    return torch.addcmul(w, g, rho / size)


def ascended_adaptively(w: Tensor, g: Tensor, *, rho: float, eta: float) -> Tensor:
    """w + ρ T² g / ‖T g‖: a weight moves the further the larger it is, one of 0 by η still."""
    scale = w.abs() + eta
    steep = scale * g
    size = torch.linalg.vector_norm(steep).clamp_min(_SMALL)
    return torch.addcmul(w, scale * steep, rho / size)
