"""FedAdagrad, FedYogi, FedAdam (Reddi et al. 2021, Algorithm 2) and FedAvgM (Hsu et al. 2019), in rounds as FedAvg.

    Δ_t = Σ (n_i / n) (x_i − x_t)                     m_t = β1 m_{t−1} + (1 − β1) Δ_t
    v_t = v_{t−1} + Δ_t²                              adagrad
    v_t = v_{t−1} − (1 − β2) Δ_t² sign(v_{t−1} − Δ_t²)   yogi
    v_t = β2 v_{t−1} + (1 − β2) Δ_t²                  adam
    x_{t+1} = x_t + η m_t / (√v_t + τ)                v_{−1} = τ²

FedAvgM is written in the uphill signs of its paper: w ← w − η v, v ← β v + Δw with Δw = w − Σ (n_k / n) w_k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.methods.fedavg.reference import FedAvg
from tests.reference.problem import Vec

Optimizer = Callable[[Vec, Vec], Vec]  # x, Δ → x


class Adaptive:
    def __init__(self, kind: str, *, eta: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3):
        self.kind, self.eta, self.beta1, self.beta2, self.tau = kind, eta, beta1, beta2, tau
        self.m: Vec = np.zeros(1)
        self.v: Vec = np.full(1, tau**2)

    def __call__(self, x: Vec, delta: Vec) -> Vec:
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        if self.kind == "adagrad":
            self.v = self.v + delta**2
        elif self.kind == "yogi":
            self.v = self.v - (1 - self.beta2) * delta**2 * np.sign(self.v - delta**2)
        else:
            self.v = self.beta2 * self.v + (1 - self.beta2) * delta**2
        return x + self.eta * self.m / (np.sqrt(self.v) + self.tau)


class Momentum:
    def __init__(self, *, eta: float = 1.0, beta: float = 0.9, nesterov: bool = False):
        self.eta, self.beta, self.nesterov = eta, beta, nesterov
        self.v: Vec = np.zeros(1)

    def __call__(self, w: Vec, delta: Vec) -> Vec:
        uphill = -delta
        self.v = self.beta * self.v + uphill
        return w - self.eta * (uphill + self.beta * self.v if self.nesterov else self.v)


class InRounds(FedAvg):
    """FedAvg whose mean is not where the server goes, but what its optimizer is told."""

    def __init__(self, w: Vec, sizes: Sequence[float], optimizer: Optimizer):
        super().__init__(w, sizes)
        self.optimizer = optimizer

    def close_if_all_are_back(self) -> None:
        x = self.w
        super().close_if_all_are_back()
        if self.w is not x:
            self.w = self.optimizer(x, self.w - x)
