"""CA²FL (Wang et al. 2024): h_i caches client i's last update, 0 before it has one; h is their mean over all N clients.

When M updates have come, from the clients S:   v = h + (1/|S|) Σ_{i ∈ S} (Δ_i − h_i),   w ← w + η v,   then h_i ← Δ_i.

Who came more than once is in S once, with the last of its updates.
"""

from __future__ import annotations

import numpy as np

from tests.reference.problem import Vec


class CA2FL:
    in_rounds = False

    def __init__(self, w: Vec, n: int, *, M: int, eta: float = 1.0):
        self.w, self.M, self.eta = w, M, eta
        self.h = [np.zeros_like(w) for _ in range(n)]
        self.t = 0
        self.handed: dict[int, tuple[int, Vec]] = {}
        self.buffer: list[tuple[int, Vec]] = []

    def start(self, m: int) -> Vec:
        self.handed[m] = (self.t, self.w)
        return self.w

    def receive(self, m: int, w_m: Vec) -> int:
        t_then, given = self.handed[m]
        tau = self.t - t_then
        self.buffer.append((m, w_m - given))
        if len(self.buffer) == self.M:
            S = dict(self.buffer)
            v = sum(self.h) / len(self.h) + sum(delta - self.h[i] for i, delta in S.items()) / len(S)
            self.w = self.w + self.eta * v
            for i, delta in S.items():
                self.h[i] = delta
            self.buffer = []
            self.t += 1
        return tau

    def lose(self, m: int) -> None:
        pass
