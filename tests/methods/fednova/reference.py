"""FedNova (Wang et al. 2020): a client's displacement is −η Σ_j a_j g_j, and

d_k = (w − w_k) / ‖a_k‖₁        w ← w − τ_eff Σ p_k d_k        τ_eff = Σ p_k ‖a_k‖₁
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.methods.fedavg.reference import FedAvg
from tests.reference.problem import Problem, Vec


def coefficients(steps: int, *, lr: float, rho: float = 0.0, mu: float = 0.0) -> Vec:
    """a, found by letting the j-th gradient be the j-th unit vector. The pull is part of what momentum gathers."""
    y, v = np.zeros(steps), np.zeros(steps)
    for j in range(steps):
        v = rho * v + np.eye(steps)[j] + mu * y
        y = y - lr * v
    return -y / lr


def descend(problem: Problem, m: int, start: Vec, *, steps: int, lr: float, rho: float = 0.0, mu: float = 0.0) -> Vec:
    w, v = start, np.zeros_like(start)
    for _ in range(steps):
        v = rho * v + problem.gradient(m, w) + mu * (w - start)
        w = w - lr * v
    return w


class FedNova(FedAvg):
    """`sizes` are what clients weigh, `norms` their ‖a_k‖₁."""

    def __init__(self, w: Vec, sizes: Sequence[float], norms: Sequence[float]):
        super().__init__(w, sizes)
        self.norms = norms

    def close_if_all_are_back(self) -> None:
        if self.back and self.back.keys() == self.cohort:
            n = sum(self.sizes[k] for k in self.cohort)
            p = {k: self.sizes[k] / n for k in self.cohort}
            tau_eff = sum(p[k] * self.norms[k] for k in self.cohort)
            d = {k: (self.w - w_k) / self.norms[k] for k, w_k in self.back.items()}
            self.w = self.w - tau_eff * sum(p[k] * d[k] for k in self.cohort)
            self.cohort, self.back = set(), {}
