"""MIFA (Gu et al. 2021), in gradient sign: G_i = (w − w_i)/η_t of client i's last round, w ← w − η_t (1/N) Σ_i G_i.

The rate η_t of round t, the clients' and the server's, is η decay^t.

`algorithm_1` is the paper's loop over rounds, each with a set of available clients; G_i is 0 before client i's first.
`MIFA` is the server that a clock plays: a round is over when all its clients are back (with or without anything), or an
epoch's length after its beginning. A server that waits for everybody makes rounds of who has not been seen, and steps
when all have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

import numpy as np

from tests.reference.problem import Vec

Train = Callable[[int, Vec, float], Vec]  # client, w, η_t → w_i


def algorithm_1(
    w: Vec, n: int, available: Sequence[Collection[int]], train: Train, *, eta: float, decay: float = 1.0
) -> list[Vec]:
    """w after each round."""
    G = [np.zeros_like(w) for _ in range(n)]
    after = []
    for t, A in enumerate(available):
        eta_t = eta * decay**t
        for i in A:
            G[i] = (w - train(i, w, eta_t)) / eta_t
        w = w - eta_t * sum(G) / n
        after.append(w)
    return after


class MIFA:
    """`eta` is the rate of the moment."""

    def __init__(self, w: Vec, n: int, *, eta: float, decay: float = 1.0, wait: bool = True, epoch: float = inf):
        self.w, self.n, self.eta, self.decay, self.wait = w, n, eta, decay, wait
        self.epoch: float | None = epoch
        self.G: dict[int, Vec] = {}

    @property
    def waiting(self) -> bool:
        return self.wait and len(self.G) < self.n

    def candidates(self, idle: list[int]) -> list[int]:
        return [i for i in idle if not (self.waiting and i in self.G)]

    def receive(self, k: int, work: Vec, seconds: float, *, late: bool) -> None:
        self.G[k] = work

    def end_of_epoch(self) -> bool:
        if not self.G or self.waiting:
            return False
        self.w = self.w - self.eta * sum(self.G.values()) / self.n
        self.eta *= self.decay
        return True
