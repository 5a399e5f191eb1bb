"""OrthoDyn (AsyncManifold Eq. 16) in uphill signs: orthograd, asgd near the switch, orthopos above it.

progress    the share of updates that were in before this one
ratio       1 − mean‖Δ‖ / its maximum so far, mean ← s·mean + (1 − s)‖Δ‖
agreement   (1 + e)/2;  e ← s·e + (1 − s)(cos(Δ, Θ^t − Θ_i,last) − cos(Δ, Δ_last)), both pointing from the new start;
            0 until two comparisons a client are in
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.methods.orthocorrect.reference import Corrected, orthocorrect
from tests.reference.problem import Vec


def cosine(a: Vec, b: Vec) -> float:
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms > 0 else 0.0


class OrthoDyn:
    """What it has seen so far; `correct` takes client, Δ, Θ^t and Θ^τ."""

    def __init__(self, statistic: str, *, clients: int, updates: int, switch: float, middle: float, smooth: float):
        self.statistic, self.clients, self.updates = statistic, clients, updates
        self.switch, self.middle, self.s = switch, middle, smooth
        self.n = self.comparisons = 0
        self.mean = self.most = self.e = 0.0
        self.last: dict[int, tuple[Vec, Vec]] = {}  # Δ and Θ_i of a client's last visit
        self.values: list[float] = []
        self.phases: list[int] = []

    def correct(self, m: int, delta: Vec, old: Vec, new: Vec) -> Vec:
        self.n += 1
        value = getattr(self, self.statistic)(m, delta, old)
        phase = 2 if value > self.switch else 1 if value > self.switch - self.middle else 0
        self.values.append(value)
        self.phases.append(phase)
        if phase == 1:
            return delta
        return orthocorrect(1.0 if phase == 2 else 0.0, 0.0)(delta, old, new)

    def progress(self, *_: Any) -> float:
        return (self.n - 1) / self.updates

    def ratio(self, m: int, delta: Vec, old: Vec) -> float:
        size = float(np.linalg.norm(delta))
        self.mean = size if self.n == 1 else self.s * self.mean + (1 - self.s) * size
        self.most = max(self.most, self.mean)
        return 1 - self.mean / self.most

    def agreement(self, m: int, delta: Vec, old: Vec) -> float:
        if m in self.last:
            last, ended = self.last[m]
            better = cosine(delta, old - ended) - cosine(delta, last)
            self.e = better if self.comparisons == 0 else self.s * self.e + (1 - self.s) * better
            self.comparisons += 1
        self.last[m] = (delta, old - delta)
        return min(max((1 + self.e) / 2, 0.0), 1.0) if self.comparisons >= 2 * self.clients else 0.0

    def well_posed(self) -> bool:
        """No value lies so near a threshold that rounding decides the phase (progress is a quotient of two counts)."""
        edges = (self.switch, self.switch - self.middle)
        return self.statistic == "progress" or all(abs(v - edge) > 1e-9 for v in self.values if v > 0 for edge in edges)


class CorrectedBy(Corrected):
    """Θ ← Θ − η Δ̂ with a correction that knows whose update it is."""

    def __init__(self, w: Vec, eta: float, dyn: OrthoDyn):
        super().__init__(w, eta, lambda delta, old, new: dyn.correct(self.me, delta, old, new))
        self.me = -1

    def receive(self, m: int, w_m: Vec) -> int:
        self.me = m
        return super().receive(m, w_m)
