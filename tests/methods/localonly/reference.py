"""Local-only: N clients that train alone from w0; w is the mean of all their models, those not heard of at w0.

A client's staleness counts from its hand-out.
"""

from __future__ import annotations

import numpy as np

from tests.reference.problem import Vec


class LocalOnly:
    in_rounds = False

    def __init__(self, w: Vec, n: int):
        self.w = w
        self.models = [w] * n
        self.t = 0
        self.known: dict[int, int] = {}

    def start(self, m: int) -> Vec:
        self.known[m] = self.t
        return self.models[m]

    def receive(self, m: int, w_m: Vec) -> int:
        tau = self.t - self.known[m]
        self.models[m] = w_m
        self.w = np.mean(self.models, axis=0)
        self.t += 1
        return tau

    def lose(self, m: int) -> None:
        pass
