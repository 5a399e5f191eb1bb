"""FADAS (Wang et al. 2024, Algorithm 1): every M arrivals, with Δ_t the mean of their Δ_i = x_i − what i was given,

    m_t = β1 m_{t−1} + (1 − β1) Δ_t,   v_t = β2 v_{t−1} + (1 − β2) Δ_t²,   v̂_t = max(v̂_{t−1}, v_t)
    x_{t+1} = x_t + η_t m_t / (√v̂_t + ε)
    η_t = η if τ_max ≤ τ_c, else min(η, 1/τ_max) as printed ("capped"), η/τ_max as released ("scaled")

τ_max is the longest delay of the M, in server steps. Without the maximum, v̂_t = v_t; v_0 = v.
"""

from __future__ import annotations

import numpy as np

from tests.reference.problem import Vec


class FADAS:
    in_rounds = False

    def __init__(
        self,
        x: Vec,
        *,
        M: int = 5,
        eta: float,
        beta1: float = 0.9,
        beta2: float = 0.99,
        eps: float = 1e-8,
        delay: str = "ignored",
        tau_c: int = 1,
        maximum: bool = True,
        v: float = 0.0,
    ):
        self.w, self.M, self.eta, self.beta1, self.beta2, self.eps = x, M, eta, beta1, beta2, eps
        self.delay, self.tau_c, self.maximum = delay, tau_c, maximum
        self.t = 0
        self.m, self.v, self.v_hat = np.zeros_like(x), np.full_like(x, v), np.zeros_like(x)
        self.handed: dict[int, tuple[int, Vec]] = {}
        self.buffer: list[tuple[int, Vec]] = []  # τ_i, Δ_i

    def start(self, i: int) -> Vec:
        self.handed[i] = (self.t, self.w)
        return self.w

    def receive(self, i: int, x_i: Vec) -> int:
        then, given = self.handed[i]
        tau = self.t - then
        self.buffer.append((tau, x_i - given))
        if len(self.buffer) == self.M:
            self.step()
            self.buffer = []
            self.t += 1
        return tau

    def step(self) -> None:
        delta = sum(d for _, d in self.buffer) / self.M
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        self.v = self.beta2 * self.v + (1 - self.beta2) * delta**2
        self.v_hat = np.maximum(self.v_hat, self.v) if self.maximum else self.v
        self.w = self.w + self.rate(max(tau for tau, _ in self.buffer)) * self.m / (np.sqrt(self.v_hat) + self.eps)

    def rate(self, tau_max: int) -> float:
        if self.delay == "ignored" or tau_max <= self.tau_c:
            return self.eta
        return min(self.eta, 1 / tau_max) if self.delay == "capped" else self.eta / tau_max

    def lose(self, i: int) -> None:
        pass
