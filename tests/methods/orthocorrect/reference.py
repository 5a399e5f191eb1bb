"""Delay corrections (AsyncManifold Sec. 3), in the paper's uphill signs: Δ = Θ^t − Θ_i, Θ ← Θ − η Δ̂ on arrival.

orthocorrect   with b = Θ^t − Θ^τ:  Δ − (Δ·b / b·b) b  if cos(Δ, b) ≤ ϑ,  else Δ − α b
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.reference.problem import Vec

Correction = Callable[[Vec, Vec, Vec], Vec]  # Δ, Θ^t, Θ^τ → Δ̂


def orthocorrect(alpha: float, theta: float, *, endpoint: bool = False) -> Correction:
    def correct(delta: Vec, old: Vec, new: Vec) -> Vec:
        b = old - new
        if not b.any():
            return delta
        norms = np.linalg.norm(delta) * np.linalg.norm(b)
        conflict = delta @ b < b @ b if endpoint else delta @ b <= theta * norms
        return delta - ((delta @ b) / (b @ b) if conflict else alpha) * b

    return correct


class Corrected:
    in_rounds = False

    def __init__(self, w: Vec, eta: float, correct: Correction):
        self.w, self.eta, self.correct = w, eta, correct
        self.t = 0
        self.handed: dict[int, tuple[int, Vec]] = {}

    def start(self, m: int) -> Vec:
        self.handed[m] = (self.t, self.w)
        return self.w

    def receive(self, m: int, w_m: Vec) -> int:
        then, old = self.handed[m]
        self.w = self.w - self.eta * self.correct(old - w_m, old, self.w)
        self.t += 1
        return self.t - 1 - then

    def lose(self, m: int) -> None:
        pass
