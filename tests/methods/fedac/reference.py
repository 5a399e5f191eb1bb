"""FedAC (Zang et al. 2024), downhill: Δ_i = w_i − w_start. After K arrivals,

    r_i   = cos(w − w_start, Δ_i), at least `floor`; 1 where the server made no step since the hand-out
    Δ     = Σ p_i Δ_i,  p_i = r_i / Σ r_j
    m     ← β1 m + (1 − β1) Δ,   v ← β2 v + (1 − β2) Δ²
    w     ← w + η (β1 m + (1 − β1) Δ) / (√v + ε)
    c     ← c + (K/N) Σ p_i (c_i⁺ − c_i)

and a client steps along g − c_i + c; then c_i⁺ = c_i − c + (w_start − w_i) / (steps · η_l).
"""

from __future__ import annotations

import numpy as np

from tests.reference.problem import Problem, Vec


class FedAC:
    in_rounds = False

    def __init__(
        self,
        problem: Problem,
        *,
        steps: int,
        lr: float,
        buffer: int = 5,
        eta: float = 1e-3,
        beta1: float = 0.6,
        beta2: float = 0.9,
        eps: float = 1e-8,
        floor: float = 0.1,
        correction: bool = True,
        adaptive: bool = True,
    ):
        self.problem, self.steps, self.lr = problem, steps, lr
        self.size, self.eta, self.beta1, self.beta2, self.floor = buffer, eta, beta1, beta2, floor
        self.eps, self.correction, self.adaptive = eps, correction, adaptive
        self.w, self.t, self.n = problem.w0, 0, len(problem.data)
        self.m, self.v, self.c = (np.zeros_like(self.w) for _ in range(3))
        self.c_i = [np.zeros_like(self.w) for _ in range(self.n)]
        self.handed: dict[int, tuple[int, Vec]] = {}
        self.next_c_i: dict[int, Vec] = {}
        self.buffer: list[tuple[float, Vec, Vec]] = []  # r_i, Δ_i, c_i⁺ − c_i
        self.well_posed = True  # no direction was read off a displacement that is nothing but rounding

    def start(self, m: int) -> Vec:
        self.handed[m] = (self.t, self.w)
        return self.w

    def train(self, m: int, w: Vec) -> Vec:
        """Right after `start`, with the c of that moment."""
        start, c = w, self.c if self.correction else 0.0
        c_i = self.c_i[m] if self.correction else 0.0
        for _ in range(self.steps):
            w = w - self.lr * (self.problem.gradient(m, w) - c_i + c)
        self.next_c_i[m] = c_i - c + (start - w) / (self.steps * self.lr)
        return w

    def receive(self, m: int, w_m: Vec) -> int:
        then, start = self.handed[m]
        delta, way = w_m - start, self.w - start
        r = 1.0
        self.well_posed &= np.linalg.norm(delta) > 1e-9
        if then < self.t and np.linalg.norm(way) > 0 and np.linalg.norm(delta) > 0:
            r = max(way @ delta / (np.linalg.norm(way) * np.linalg.norm(delta)), self.floor)
        self.buffer.append((r, delta, self.next_c_i[m] - self.c_i[m]))
        self.c_i[m] = self.next_c_i[m]
        staleness = self.t - then
        if len(self.buffer) == self.size:
            self.flush()
        return staleness

    def lose(self, m: int) -> None:
        pass

    def flush(self) -> None:
        p = np.array([r for r, _, _ in self.buffer])
        p = p / p.sum()
        delta = sum(p_i * d for p_i, (_, d, _) in zip(p, self.buffer, strict=True))
        change = sum(p_i * dc for p_i, (_, _, dc) in zip(p, self.buffer, strict=True))
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        self.v = self.beta2 * self.v + (1 - self.beta2) * delta**2
        ahead = self.beta1 * self.m + (1 - self.beta1) * delta
        self.w = self.w + self.eta * (ahead / (np.sqrt(self.v) + self.eps) if self.adaptive else ahead)
        self.c = self.c + self.size / self.n * change
        self.buffer = []
        self.t += 1
