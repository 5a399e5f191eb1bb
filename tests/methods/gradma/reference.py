"""GradMA (Luo et al. 2023), word for word: rows fade every round, all three of a worker's rows are always there.

QP(g; M)   of all z = g − (its part in the span of some rows of M) with M z ≥ 0, the nearest to g
worker     g̃ = QP(∇f(x_τ); ∇f(x_{τ−1}), ∇f(x), x_τ − x),  x_{−1}: where its last visit ended (the first time x)
server     m ← QP(β_1 m + mean d_i; D),  x ← x − η_g m,  D[i] ← β_2 D[i] (+ d_i),  d_i = x − x_i
memory     a newcomer that finds m others there drives the least counted out that is not of this round
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from tests.reference.problem import Problem, Vec

NEARLY = 1e-12


class QP:
    """By trying every set of rows to be orthogonal to, stretch by stretch.

    `thinnest`: the least singular value of unit rows that were the answer. Where it is small, rows that are all but
    opposite leave a wedge so thin that the last digits decide.
    """

    def __init__(self, stretches: Sequence[slice]):
        self.stretches, self.thinnest = stretches, 1.0

    def __call__(self, g: Vec, M: Sequence[Vec]) -> Vec:
        return np.concatenate([self.of_one(g[at], [r[at] for r in M]) for at in self.stretches])

    def of_one(self, g: Vec, M: Sequence[Vec]) -> Vec:
        rows = [r / np.linalg.norm(r) for r in M if r.any()]
        size = float(np.linalg.norm(g))
        best, far, thin = g, np.inf, 1.0
        for chosen in (list(c) for n in range(len(rows) + 1) for c in combinations(rows, n)):
            z, least = g, 1.0
            if chosen:
                A = np.stack(chosen).T
                z = g - A @ np.linalg.lstsq(A, g, rcond=NEARLY)[0]
                least = float(np.linalg.svd(A)[1].min())
            distance = float(np.linalg.norm(z - g))
            if all(r @ z >= -NEARLY * size for r in rows) and distance < far - NEARLY * size:
                best, far, thin = z, distance, least
        assert far <= size * (1 + NEARLY), "0 is always within 90° of everything"
        self.thinnest = min(self.thinnest, thin)
        return best

    def begins(self, g: Vec, z: Vec) -> None:
        """A visit whose first step was all taken away in some stretch has rounding alone to be remembered by there."""
        for at in self.stretches:
            if g[at].any() and np.linalg.norm(z[at]) <= NEARLY * np.linalg.norm(g[at]):
                self.thinnest = 0.0


def worker_update(problem: Problem, i: int, x: Vec, last: Vec, qp: QP, *, steps: int, lr: float) -> Vec:
    before, now = last, x
    for tau in range(steps):
        g = problem.gradient(i, now)
        z = qp(g, [problem.gradient(i, before), problem.gradient(i, x), now - x])
        if tau == 0:
            qp.begins(g, z)
        before, now = now, now - lr * z
    return now


class GradMA:
    """The server, in rounds. Sizes are what clients weigh by."""

    in_rounds = True

    def __init__(
        self,
        w: Vec,
        sizes: Sequence[float],
        qp: QP,
        *,
        beta1: float = 0.5,
        beta2: float = 0.5,
        eta: float = 1.0,
        memory: int | None = None,
    ):
        self.w, self.sizes, self.qp, self.eta = w, sizes, qp, eta
        self.beta1, self.beta2 = beta1, beta2
        self.memory = len(sizes) if memory is None else memory
        self.momentum = np.zeros_like(w)
        self.D: dict[int, Vec] = {}
        self.counters: dict[int, int] = {}
        self.cohort: set[int] = set()
        self.back: dict[int, Vec] = {}

    def start(self, m: int) -> Vec:
        self.cohort.add(m)
        return self.w

    def receive(self, m: int, w_m: Vec) -> int:
        self.back[m] = w_m
        self.close_if_all_are_back()
        return 0

    def lose(self, m: int) -> None:
        self.cohort.discard(m)
        self.close_if_all_are_back()

    def close_if_all_are_back(self) -> None:
        if not self.back or self.back.keys() != self.cohort:
            return
        d = {i: self.w - w_i for i, w_i in self.back.items()}
        mass = sum(self.sizes[i] for i in d)
        mean = sum(self.sizes[i] / mass * d_i for i, d_i in d.items())
        if self.memory:
            self.remember(d)
        self.momentum = self.qp(self.beta1 * self.momentum + mean, list(self.D.values()))
        self.w = self.w - self.eta * self.momentum
        self.cohort, self.back = set(), {}

    def remember(self, d: dict[int, Vec]) -> None:
        self.D = {i: self.beta2 * D_i for i, D_i in self.D.items()}
        for i in d:
            if i not in self.D and len(self.D) == self.memory:
                others = [k for k in self.D if k not in d]
                out = min(others, key=lambda k: self.counters[k])
                del self.D[out], self.counters[out]
            self.D[i] = self.D[i] + d[i] if i in self.D else d[i]
            self.counters[i] = self.counters.get(i, 0) + 1
