"""DC-ASGD (Zheng et al. 2017), as a correction in AsyncManifold's uphill signs, Δ = Θ^t − Θ_i.

Δ̂ = Δ + λ Δ ⊙ Δ ⊙ (Θ^τ − Θ^t),   λ constant or λ0 / √(v + 1e-7)
"""

from __future__ import annotations

import numpy as np

from tests.methods.orthocorrect.reference import Correction
from tests.reference.problem import Vec


def dc_asgd(lam: float) -> Correction:
    return lambda delta, old, new: delta + lam * delta * delta * (new - old)


def dc_asgd_adaptive(lam: float, m: float) -> Correction:
    v = [0.0]

    def correct(delta: Vec, old: Vec, new: Vec) -> Vec:
        v[0] = m * v[0] + (1 - m) * delta * delta
        return delta + lam / np.sqrt(v[0] + 1e-7) * delta * delta * (new - old)

    return correct
