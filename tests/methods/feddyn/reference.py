"""FedDyn (Acar et al. 2021), Algorithm 1, with θ, h and the clients' remembered gradients ∇L_k as printed.

θ_k ← argmin L_k(θ) − ⟨∇L_k, θ⟩ + (α/2) ‖θ − θ^(t−1)‖²        here by so many steps of gradient descent
∇L_k ← ∇L_k − α (θ_k − θ^(t−1))
h ← h − α (1/m) Σ_{k ∈ P} (θ_k − θ^(t−1))                     m: all clients
θ ← (1/|P|) Σ_{k ∈ P} θ_k − h/α
"""

from __future__ import annotations

import numpy as np

from tests.methods.fedavg.reference import FedAvg
from tests.reference.problem import Problem, Vec


class FedDyn(FedAvg):
    def __init__(self, problem: Problem, *, steps: int, lr: float, alpha: float):
        super().__init__(problem.w0, [1.0] * len(problem.data))
        self.problem, self.steps, self.lr, self.alpha = problem, steps, lr, alpha
        self.h = np.zeros_like(problem.w0)
        self.grads = [self.h for _ in problem.data]

    def train(self, k: int, start: Vec) -> Vec:
        theta = start
        for _ in range(self.steps):
            slope = self.problem.gradient(k, theta) - self.grads[k] + self.alpha * (theta - start)
            theta = theta - self.lr * slope
        return theta

    def close_if_all_are_back(self) -> None:
        if not self.back or self.back.keys() != self.cohort:
            return
        total = np.zeros_like(self.w)
        for k, theta in self.back.items():
            self.grads[k] = self.grads[k] - self.alpha * (theta - self.w)
            total += theta - self.w
        self.h = self.h - self.alpha * total / len(self.grads)
        self.w = sum(self.back.values()) / len(self.back) - self.h / self.alpha
        self.cohort, self.back = set(), {}
