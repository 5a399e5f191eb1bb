"""SCAFFOLD (Karimireddy et al. 2020), Algorithm 1, with x, y_i and c_i as printed.

y_i ← x;  K times  y_i ← y_i − η_l (g_i(y_i) − c_i + c)
c_i⁺ ← (i) g_i(x)   or   (ii) c_i − c + (x − y_i) / (K η_l)
x ← x + η_g mean (y_i − x)        c ← c + (|S|/N) mean (c_i⁺ − c_i)

Where clients weigh n_i the means are weighted: c = Σ n_i c_i / Σ n_i over all N, who has not come having the mean size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.methods.fedavg.reference import FedAvg
from tests.reference.problem import Problem, Vec


class Scaffold(FedAvg):
    """`sizes` are what clients weigh; `decay` multiplies the rate at every server step."""

    def __init__(
        self,
        problem: Problem,
        sizes: Sequence[float],
        *,
        steps: int,
        lr: float,
        eta_g: float = 1.0,
        option: str = "II",
        decay: float = 1.0,
    ):
        super().__init__(problem.w0, sizes)
        self.problem, self.K, self.lr, self.eta_g, self.option, self.decay = problem, steps, lr, eta_g, option, decay
        self.c = np.zeros_like(problem.w0)
        self.c_i = [self.c for _ in sizes]
        self.seen: set[int] = set()

    def train(self, i: int, x: Vec) -> Vec:
        y = x
        for _ in range(self.K):
            y = y - self.lr * (self.problem.gradient(i, y) - self.c_i[i] + self.c)
        return y

    def close_if_all_are_back(self) -> None:
        if not self.back or self.back.keys() != self.cohort:
            return
        n = sum(self.sizes[i] for i in self.cohort)
        dx = np.zeros_like(self.w)
        for i, y in self.back.items():
            if self.option == "I":
                new = self.problem.gradient(i, self.w)
            else:
                new = self.c_i[i] - self.c + (self.w - y) / (self.K * self.lr)
            dx += self.sizes[i] / n * (y - self.w)
            self.c_i[i] = new
            self.seen.add(i)
        self.w = self.w + self.eta_g * dx
        size = sum(self.sizes[i] for i in self.seen) / len(self.seen)
        self.c = sum(self.sizes[i] * self.c_i[i] for i in self.seen) / (size * len(self.c_i))
        self.lr *= self.decay
        self.cohort, self.back = set(), {}
