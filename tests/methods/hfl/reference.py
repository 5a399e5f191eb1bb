"""HFL (Li et al. 2021), in gradient sign: g = w_start − w_k points uphill. At the end of a round, S_1 came in time and
S_2 from earlier rounds:

    ŵ    = Σ_{S_1} n_k w_k / Σ_{S_1} n_k                     w where S_1 is empty
    w_i  = w − (g + h g gᵀ (w − w_start))                    for i in S_2, τ rounds late
    w    ← (1 − mean λ_i) ŵ + mean λ_i w_i,   λ_i = λ_0 e^(−τ)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.reference.problem import Vec

Work = tuple[int, Vec, Vec]  # the round and weights of its hand-out, and the result


class HFL:
    def __init__(self, w: Vec, sizes: Sequence[int], *, lam: float = 0.5, h: float = 1.0, epoch: float | None = None):
        self.w, self.sizes, self.lam, self.h, self.epoch = w, sizes, lam, h, epoch
        self.given = epoch is not None  # else it is the shortest of the clients' first visits
        self.t = 0
        self.seen: set[int] = set()
        self.s_1: dict[int, Vec] = {}
        self.s_2: list[tuple[int, Vec, Vec]] = []

    def receive(self, k: int, work: Work, seconds: float, *, late: bool) -> None:
        if not self.given and k not in self.seen:
            self.epoch = seconds if self.epoch is None else min(self.epoch, seconds)
        self.seen.add(k)
        then, start, w_k = work
        assert late == (then < self.t)
        if late:
            self.s_2.append((self.t - then, start, w_k))
        else:
            self.s_1[k] = w_k

    def end_of_epoch(self) -> bool:
        if not self.s_1 and not self.s_2:
            return False
        w_hat, w = self.w, self.w
        if self.s_1:
            n = sum(self.sizes[k] for k in self.s_1)
            w_hat = sum(self.sizes[k] / n * w_k for k, w_k in self.s_1.items())  # type: ignore[assignment]
        self.w = w_hat
        if self.s_2:
            lams = [self.lam * np.exp(-tau) for tau, _, _ in self.s_2]
            corrected = []
            for _, start, w_k in self.s_2:
                g = start - w_k
                corrected.append(w - (g + self.h * np.outer(g, g) @ (w - start)))
            late = sum(lam * w_i for lam, w_i in zip(lams, corrected, strict=True)) / len(lams)
            self.w = (1 - sum(lams) / len(lams)) * w_hat + late
        self.t += 1
        self.s_1, self.s_2 = {}, []
        return True
