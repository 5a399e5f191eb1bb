"""FedAvg (McMahan et al. 2017): the cohort starts from w; when all are back, w ← Σ (n_k / n) w_k, n = Σ n_k.

Who is lost on the way is not waited for, and the sums run over those who came; if nobody came, w stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.problem import Problem, Vec


class FedAvg:
    in_rounds = True

    def __init__(self, w: Vec, sizes: Sequence[float]):
        self.w, self.sizes = w, sizes
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
        if self.back and self.back.keys() == self.cohort:
            n = sum(self.sizes[k] for k in self.cohort)
            self.w = sum(self.sizes[k] / n * w_k for k, w_k in self.back.items())  # type: ignore[assignment]
            self.cohort, self.back = set(), {}


def descend(problem: Problem, m: int, w: Vec, *, steps: int, lr: float) -> Vec:
    """Plain full-batch gradient descent."""
    for _ in range(steps):
        w = w - lr * problem.gradient(m, w)
    return w
