"""FedSAM (Qu et al. 2022) and FedASAM (Caldarola et al. 2022): FedAvg whose client descends by ∇L(w + ε), g = ∇L(w),

    SAM    ε = ρ g / ‖g‖                  ASAM   ε = ρ T² g / ‖T g‖,  T = diag(|w| + η)

and by ∇L(w) where g is 0.
"""

from __future__ import annotations

import numpy as np

from tests.reference.problem import Problem, Vec


def ascent(w: Vec, g: Vec, *, rho: float, eta: float | None = None) -> Vec:
    """ε; of SAM without η."""
    T = np.eye(len(w)) if eta is None else np.diag(np.abs(w) + eta)
    size = np.linalg.norm(T @ g)
    eps: Vec = rho * T @ T @ g / size if size > 0 else np.zeros_like(w)
    return eps


def descend_flat(
    problem: Problem, m: int, w: Vec, *, steps: int, lr: float, rho: float, eta: float | None = None
) -> Vec:
    for _ in range(steps):
        g = problem.gradient(m, w)
        w = w - lr * problem.gradient(m, w + ascent(w, g, rho=rho, eta=eta))
    return w
