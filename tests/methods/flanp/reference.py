"""FLANP (Reisizadeh et al. 2020) for clients whose times T_k are known after a first round of all.

stage     clients with T_k ≤ the n-th smallest T; n = n_0 at first
fedavg    after a round of the stage from w: g = Σ m_k (w − w_k) / Σ m_k steps η_l, m_k = n_k as in FedAvg's mean, or 1
fedgate   clients descend g − δ_k, δ_k = 0 at first in every stage; the rounds' mean is FedAvg's. After a round
          d_k = (w − w_k) / (steps η_l),  D = Σ m_k d_k / Σ m_k,  δ_k ← δ_k + d_k − D,  g = D
if        ‖g‖² ≤ 2 μ c / (n s), s the mean size of the round's clients, or after R rounds:  n ← min(2n, N)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.methods.fedavg.reference import FedAvg
from tests.reference.problem import Problem, Vec


class FLANP(FedAvg):
    def __init__(
        self,
        problem: Problem,
        sizes: Sequence[int],
        times: Sequence[float],
        *,
        steps: int,
        lr: float,
        n0: int = 2,
        mu: float = 1.0,
        c: float = 10.0,
        rounds: int | None = None,
        solver: str = "fedgate",
        weighting: str = "examples",
    ):
        super().__init__(problem.w0, sizes if weighting == "examples" else [1] * len(sizes))
        self.problem, self.steps, self.lr, self.gate = problem, steps, lr, solver == "fedgate"
        self.examples, self.most = sizes, rounds
        self.times, self.n, self.bound = times, n0, 2 * mu * c
        self.rounds, self.in_stage = 0, 0
        self.started = problem.w0
        self.came: dict[int, Vec] = {}
        self.delta = [np.zeros_like(problem.w0) for _ in times]
        self.stages: list[int] = []

    def choose(self, _: float, idle: list[int]) -> list[int]:
        """Whom a round is handed to."""
        N = len(self.times)
        if self.rounds > 1 or (self.n >= N and self.rounds > 0 and self.times_are_unknown()):
            self.end_round()
        self.rounds += 1
        self.started, self.came = self.w, {}
        self.stages.append(self.n)
        if self.n >= N or self.rounds == 1:
            return idle
        slowest = sorted(self.times)[self.n - 1]
        return [k for k in idle if self.times[k] <= slowest]

    def times_are_unknown(self) -> bool:
        """With n_0 = N there is no round of first visits: all rounds are of the one stage."""
        return self.stages[0] >= len(self.times)

    def train(self, m: int, w: Vec) -> Vec:
        for _ in range(self.steps):
            w = w - self.lr * (self.problem.gradient(m, w) - (self.delta[m] if self.gate else 0.0))
        return w

    def receive(self, m: int, w_m: Vec) -> int:
        self.came[m] = w_m
        return super().receive(m, w_m)

    def end_round(self) -> None:
        mass = sum(self.sizes[k] for k in self.came)
        d = {k: (self.started - w_k) / (self.steps * self.lr) for k, w_k in self.came.items()}
        g = sum(self.sizes[k] * d_k for k, d_k in d.items()) / mass
        for k, d_k in d.items():
            self.delta[k] = self.delta[k] + d_k - g
        s = sum(self.examples[k] for k in self.came) / len(self.came)
        self.in_stage += 1
        over = np.sum(np.square(g)) <= self.bound / (self.n * s) or self.in_stage == self.most
        if over and self.n < len(self.times):
            self.n, self.in_stage = min(2 * self.n, len(self.times)), 0
            self.delta = [np.zeros_like(self.w) for _ in self.times]
