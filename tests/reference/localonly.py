"""Local-only: N clients that train alone from w0; w is the mean of all their models, those not heard of at w0.

A client's staleness counts from when its last update was taken in; at first, from its hand-out.
"""

from __future__ import annotations

import numpy as np

from .problem import Vec


class LocalOnly:
    in_rounds = False

    def __init__(self, w: Vec, n: int):
        self.w = w
        self.models = [w] * n
        self.t = 0
        self.known: dict[int, int] = {}
        self.heard: set[int] = set()

    def start(self, m: int) -> Vec:
        if m not in self.heard:
            self.known[m] = self.t
        return self.models[m]

    def receive(self, m: int, w_m: Vec) -> int:
        tau = self.t - self.known[m]
        self.models[m] = w_m
        self.w = np.mean(self.models, axis=0)
        self.t += 1
        self.known[m] = self.t
        self.heard.add(m)
        return tau

    def lose(self, m: int) -> None:
        pass
