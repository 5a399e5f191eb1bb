"""FedAsync (Xie et al. 2019): w ← (1 − α_t) w + α_t w_k on arrival, α_t = α s(τ), τ = server steps since hand-out.

constant     s(τ) = 1
polynomial   s(τ) = (τ + 1)^(−a)
hinge        s(τ) = 1 if τ ≤ b, else 1 / (a (τ − b) + 1)
"""

from __future__ import annotations

from collections.abc import Callable

from tests.reference.problem import Vec


def constant(tau: int) -> float:
    return 1.0


def polynomial(a: float) -> Callable[[int], float]:
    return lambda tau: float((tau + 1) ** -a)


def hinge(a: float, b: float) -> Callable[[int], float]:
    return lambda tau: 1.0 if tau <= b else 1 / (a * (tau - b) + 1)


class FedAsync:
    in_rounds = False

    def __init__(self, w: Vec, alpha: float, s: Callable[[int], float]):
        self.w, self.alpha, self.s = w, alpha, s
        self.t = 0
        self.handed: dict[int, int] = {}  # t at m's hand-out

    def start(self, m: int) -> Vec:
        self.handed[m] = self.t
        return self.w

    def receive(self, m: int, w_m: Vec) -> int:
        tau = self.t - self.handed[m]
        alpha_t = self.alpha * self.s(tau)
        self.w = (1 - alpha_t) * self.w + alpha_t * w_m
        self.t += 1
        return tau

    def lose(self, m: int) -> None:
        pass
