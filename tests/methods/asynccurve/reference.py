"""AsyncCurve (Algorithms 1 and 2 of Aggregation on Learnable Manifolds), uphill signs, matrices written out.

Readings: the true Bézier curve has 2t(1−t) before φ, the printed one t(1−t); Θ̂ comes before φ̂; the client sends the
projected φ of Eq. 30; Adam divides by √v̂ + ε. Every batch of a client is its whole data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tests.reference.problem import Problem, Vec


class Sent(NamedTuple):
    w: Vec  # Θ^t
    shift: Vec | None  # Θ^τ − Θ^(τ+1) of the last step
    visit: int


class Triple(NamedTuple):
    theta: Vec
    phi: Vec


def curve(shape: str, t: float, a: Vec, phi: Vec, b: Vec) -> Vec:
    if shape == "line":
        return (1 - t) * a + t * b
    return (1 - t) ** 2 * a + weight(shape, t) * phi + t**2 * b


def weight(shape: str, t: float) -> float:
    return (2 if shape == "bezier" else 1) * t * (1 - t)


def projector(v: Vec) -> Any:
    """The matrix of the orthogonal projection onto v."""
    return np.outer(v, v) / (v @ v) if v.any() else np.zeros((len(v), len(v)))


def lift(x: Vec) -> Vec:
    """π_L."""
    return np.concatenate([[np.sqrt(1 + x @ x)], x])


def lorentz_term(theta: Vec, start: Vec, mu: float, sigma: float) -> float:
    z = lift(theta) - lift(start)
    return float(mu / 2 * np.exp((-(z[0] ** 2) + z[1:] @ z[1:]) / sigma))


def lorentz_gradient(theta: Vec, start: Vec, mu: float, sigma: float) -> Vec:
    """Chain rule through the matrix ∂π_L/∂θ and the metric diag(−1, 1, ..., 1)."""
    z = lift(theta) - lift(start)
    metric = np.diag([-1.0] + [1.0] * len(theta))
    jacobian = np.vstack([theta / np.sqrt(1 + theta @ theta), np.eye(len(theta))])
    return lorentz_term(theta, start, mu, sigma) / sigma * 2 * jacobian.T @ metric @ z


@dataclass(frozen=True)
class Client:
    """Algorithm 2."""

    problem: Problem
    epochs: int
    lam: Callable[[int, int, int], float]  # client, visit, k → λ of the visit's k-th control step
    n_batches: Sequence[int]  # of an epoch, client by client
    lr: float = 1e-3
    control_lr: float = 1e-4
    optimizer: str = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    rho: float = 0.5
    proximal: str = "lorentz"
    mu: float = 0.1
    sigma: float = 1.0
    gamma: float = 1.0
    shape: str = "bezier"

    def gradient(self, m: int, theta: Vec, start: Vec) -> Vec:
        g = self.problem.gradient(m, theta)
        if self.proximal == "lorentz":
            return g + lorentz_gradient(theta, start, self.mu, self.sigma)
        return g + self.mu * (theta - start) if self.proximal == "l2" else g

    def direction(self, m: int, theta: Vec, start: Vec) -> Vec:
        g = self.gradient(m, theta, start)
        if self.optimizer != "asam":
            return g
        T = np.diag(np.abs(theta) + 0.01)
        norm = np.linalg.norm(T @ g)
        return self.gradient(m, theta + self.rho * T @ T @ g / norm, start) if norm > 0 else g

    def train(self, m: int, sent: Sent) -> Triple:
        start, theta, batches, D = sent.w, sent.w, self.n_batches[m], len(sent.w)
        c_1, k, dphi = 0, 0, np.zeros(D)
        m_1 = np.zeros(D) if sent.shift is None else sent.shift / batches
        v_1 = np.zeros(D) if sent.shift is None else sent.shift**2 / batches**2
        for _ in range(self.epochs):
            for _ in range(batches):
                c_1 += 1
                g = self.direction(m, theta, start)
                if self.optimizer == "sgd":
                    theta = theta - self.lr * g
                    continue
                m_1 = self.beta1 * m_1 + (1 - self.beta1) * g
                v_1 = self.beta2 * v_1 + (1 - self.beta2) * g * g
                theta = theta - self.lr * (m_1 / (1 - self.beta1**c_1)) / (
                    np.sqrt(v_1 / (1 - self.beta2**c_1)) + self.eps
                )
            m_2, v_2 = np.zeros(D), np.zeros(D)
            M, held = (start + theta) / 2, np.eye(D) - self.gamma * projector(start - theta)
            for c_2 in range(1, batches + 1) if self.shape != "line" else ():
                lam = self.lam(m, sent.visit, k)
                k += 1
                at = curve(self.shape, lam, start, M + held @ dphi, theta)
                g = held.T @ (weight(self.shape, lam) * self.problem.gradient(m, at))
                m_2 = self.beta1 * m_2 + (1 - self.beta1) * g
                v_2 = self.beta2 * v_2 + (1 - self.beta2) * g * g
                dphi = dphi - self.control_lr * (m_2 / (1 - self.beta1**c_2)) / (
                    np.sqrt(v_2 / (1 - self.beta2**c_2)) + self.eps
                )
        return Triple(theta, M + held @ dphi)


def rotation(a: Vec, b: Vec) -> Any:
    """The matrix that turns a's direction onto b's and leaves alone what is orthogonal to both."""
    if not (a.any() and b.any()):
        return np.eye(len(a))
    u, v = a / np.linalg.norm(a), b / np.linalg.norm(b)
    K = np.outer(v, u) - np.outer(u, v)
    return np.eye(len(a)) + K + K @ K / (1 + u @ v)


def since_last(order: Sequence[int]) -> float:
    """P(i | time since its last update) of the last client of `order`, by going through all updates so far.

    At update number t client i has waited t − (the number of its last one); waiting times are alike if their binary
    logarithms have the same whole part.
    """
    i, waited = order[-1], list[tuple[int, bool]]()
    last = 0
    for t, who in enumerate(order, start=1):
        waited.append((t - last, who == i))
        last = t if who == i else last
    now = int(np.log2(waited[-1][0]))
    alike = [came for gap, came in waited if int(np.log2(gap)) == now]
    return sum(alike) / len(alike)


@dataclass
class Server:
    """Algorithm 1. `correct` takes client, Δ, Θ^t, Θ^τ; T is a number of updates."""

    w: Vec
    clients: int
    T: int
    correct: Callable[[int, Vec, Vec, Vec], Vec]
    eta: float = 0.4
    low: float = 0.5
    cycle: int = 5
    penalty: bool = True
    swa: float = 0.75
    periodic: int = 0
    moments: bool = True
    shape: str = "bezier"
    participation: str = "share"
    in_rounds = False

    def __post_init__(self) -> None:
        self.tau = self.n_models = 0
        self.handed: dict[int, tuple[int, Vec]] = {}
        self.visits = [0] * self.clients
        self.came = [0] * self.clients
        self.order: list[int] = []  # the client of every update
        self.shift: Vec | None = None
        self.average = self.w

    def start(self, m: int) -> Sent:
        self.handed[m] = (self.tau, self.w)
        self.visits[m] += 1
        return Sent(self.w, self.shift if self.moments else None, self.visits[m] - 1)

    def rate(self) -> float:
        """Falls in a line over each cycle of steps 1, ..., c; step 0 is the end of one."""
        t = (self.tau % self.cycle or self.cycle) / self.cycle
        return (1 - t) * self.eta + t * self.low * self.eta

    def receive(self, m: int, sent: Triple) -> int:
        then, old = self.handed[m]
        self.came[m] += 1
        self.order.append(m)
        p = self.came[m] / sum(self.came) if self.participation == "share" else since_last(self.order)
        end = self.w - self.correct(m, old - sent.theta, old, self.w)
        turned = rotation(sent.theta - old, end - self.w) @ (sent.phi - (old + sent.theta) / 2)
        phi = (self.w + end) / 2 + turned
        alpha = self.rate() / (self.clients * p) if self.penalty else self.rate()
        new = curve(self.shape, min(alpha, 1.0), self.w, phi, end)
        if (sum(self.came) - 1) / self.T >= self.swa and self.tau % self.cycle == 0:
            self.average = (self.average * self.n_models + new) / (self.n_models + 1)
            self.n_models += 1
        if self.periodic and self.n_models and self.tau % self.periodic == 0:
            new = self.average
        self.shift, self.w = self.w - new, new
        self.tau += 1
        return self.tau - 1 - then

    def lose(self, m: int) -> None:
        pass

    @property
    def answer(self) -> Vec:
        return self.average if self.n_models else self.w
