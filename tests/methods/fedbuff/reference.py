"""FedBuff (Nguyen et al. 2022): every K arrivals w ← w + (η_g / K) Σ s(τ_k) Δ_k, s(τ) = (1 + τ)^(−a), then empty.

Δ_k = w_k − what k was given; τ_k = server steps between k's hand-out and its arrival.
"""

from __future__ import annotations

from tests.reference.problem import Vec


class FedBuff:
    in_rounds = False

    def __init__(self, w: Vec, *, K: int, eta: float = 1.0, a: float = 0.5):
        self.w, self.K, self.eta, self.a = w, K, eta, a
        self.t = 0
        self.handed: dict[int, tuple[int, Vec]] = {}
        self.buffer: list[Vec] = []

    def start(self, m: int) -> Vec:
        self.handed[m] = (self.t, self.w)
        return self.w

    def receive(self, m: int, w_m: Vec) -> int:
        t_then, given = self.handed[m]
        tau = self.t - t_then
        self.buffer.append((1 + tau) ** -self.a * (w_m - given))
        if len(self.buffer) == self.K:
            self.w = self.w + self.eta / self.K * sum(self.buffer)
            self.buffer = []
            self.t += 1
        return tau

    def lose(self, m: int) -> None:
        pass
