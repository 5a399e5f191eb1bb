"""TWAFL (Chen, Sun, Jin 2019): in round t the cohort's models replace those kept, and

    w ← Σ_k n_k a^(−(t − t_k)) w_k / Σ_k n_k a^(−(t − t_k))       over all who ever came, t_k the round of k's model

A round that nobody came back from is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.problem import Vec


class TWAFL:
    in_rounds = True

    def __init__(self, w: Vec, sizes: Sequence[float], a: float):
        self.w, self.sizes, self.a = w, sizes, a
        self.t = 0
        self.kept: dict[int, tuple[Vec, int]] = {}
        self.out: set[int] = set()
        self.came = False

    def start(self, m: int) -> Vec:
        self.out.add(m)
        return self.w

    def receive(self, m: int, w_m: Vec) -> int:
        self.kept[m] = (w_m, self.t)
        self.came = True
        self.lose(m)
        return 0

    def lose(self, m: int) -> None:
        self.out.remove(m)
        if self.out or not self.came:
            return
        weight = {k: self.sizes[k] * self.a ** -(self.t - t_k) for k, (_, t_k) in self.kept.items()}
        self.w = sum(weight[k] * w_k for k, (w_k, _) in self.kept.items()) / sum(weight.values())
        self.t += 1
        self.came = False
