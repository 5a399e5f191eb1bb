"""FedProx (Li et al. 2020): FedAvg whose client descends h(w) = F_k(w) + (μ/2)‖w − w_start‖²."""

from __future__ import annotations

from tests.reference.problem import Problem, Vec


def descend_held(problem: Problem, m: int, w_start: Vec, *, steps: int, lr: float, mu: float) -> Vec:
    w = w_start
    for _ in range(steps):
        w = w - lr * (problem.gradient(m, w) + mu * (w - w_start))
    return w
