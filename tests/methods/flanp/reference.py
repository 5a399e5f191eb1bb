"""FLANP (Reisizadeh et al. 2020) with FedAvg rounds, for clients whose times T_k are known after a first round of all.

stage     clients with T_k ≤ the n-th smallest T; n = n_0 at first
after     a round of the stage from w: g = Σ m_k (w − w_k) / Σ m_k steps η_l, m_k = n_k as in FedAvg's mean, or 1
if        ‖g‖² ≤ 2 μ c / (n s), s the mean size of the round's clients:  n ← min(2n, N)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.methods.fedavg.reference import FedAvg
from tests.reference.problem import Vec


class FLANP(FedAvg):
    def __init__(
        self,
        w: Vec,
        sizes: Sequence[int],
        times: Sequence[float],
        *,
        reach: float,  # steps · η_l
        n0: int = 2,
        mu: float = 1.0,
        c: float = 10.0,
        weighting: str = "examples",
    ):
        super().__init__(w, sizes if weighting == "examples" else [1] * len(sizes))
        self.examples = sizes
        self.times, self.reach, self.n, self.bound = times, reach, n0, 2 * mu * c
        self.rounds = 0
        self.started = w
        self.stages: list[int] = []

    def choose(self, _: float, idle: list[int]) -> list[int]:
        """Whom a round is handed to."""
        N = len(self.times)
        if self.n < N and self.rounds > 1:
            self.test()
        self.rounds += 1
        self.started, self.came = self.w, dict[int, Vec]()
        self.stages.append(self.n)
        if self.n >= N or self.rounds == 1:
            return idle
        slowest = sorted(self.times)[self.n - 1]
        return [k for k in idle if self.times[k] <= slowest]

    def receive(self, m: int, w_m: Vec) -> int:
        self.came[m] = w_m
        return super().receive(m, w_m)

    def test(self) -> None:
        mass = sum(self.sizes[k] for k in self.came)
        g = sum(self.sizes[k] * (self.started - w_k) for k, w_k in self.came.items()) / (mass * self.reach)
        s = sum(self.examples[k] for k in self.came) / len(self.came)
        if np.sum(np.square(g)) <= self.bound / (self.n * s):
            self.n = min(2 * self.n, len(self.times))
