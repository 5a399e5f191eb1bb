"""FedNTD (Lee et al. 2022): FedAvg whose client descends L_CE + β τ² L_NTD. With y the true class and z the outputs,

    q̃(c) = e^(z_c/τ) / Σ_{c' ≠ y} e^(z_c'/τ)  for c ≠ y        L_NTD = Σ_{c ≠ y} q̃^g(c) log(q̃^g(c) / q̃(c))

q̃^g under the weights received; the mean over examples. ∂L_NTD/∂z_c = (q̃(c) − q̃^g(c))/τ for c ≠ y, and 0 for c = y.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.methods.fedsol import reference as fedsol
from tests.methods.fedsol.reference import Classes
from tests.reference.problem import Vec


def not_true(z: Vec, y: int, tau: float) -> Vec:
    """q̃ of one example, with a 0 in the true class's place."""
    q = np.zeros(len(z))
    others = [c for c in range(len(z)) if c != y]
    e = np.exp((z[others] - z[others].max()) / tau)
    q[others] = e / e.sum()
    return q


def distilling_gradient(problem: Classes, m: int, w: Vec, w_g: Vec, tau: float) -> Vec:
    """Of τ² L_NTD."""
    y = problem.data[m][1]
    z, z_g = problem.outputs(m, w), problem.outputs(m, w_g)
    dz = [(not_true(a, c, tau) - not_true(b, c, tau)) / tau for a, b, c in zip(z, z_g, y.tolist(), strict=True)]
    return problem.back(m, w, tau**2 * np.stack(dz) / len(y))


@dataclass(frozen=True)
class Client:
    problem: Classes
    beta: float = 1.0
    temperature: float = 1.0

    def train(self, m: int, w_g: Vec, *, steps: int, lr: float) -> Vec:
        w = w_g
        for _ in range(steps):
            distilled = distilling_gradient(self.problem, m, w, w_g, self.temperature)
            w = w - lr * (self.problem.gradient(m, w) + self.beta * distilled)
        return w


class SOLClient(fedsol.Client):
    """FedSOL's client, with τ² L_NTD for its proximal loss."""

    def proximal_gradient(self, m: int, w: Vec, w_g: Vec) -> Vec:
        return distilling_gradient(self.problem, m, w, w_g, self.temperature)
