"""MOON (Li et al. 2021): FedAvg whose client k descends ℓ_sup + μ ℓ_con. s: cosine; features z = tanh(x Aᵀ + a):

    ℓ_con = −log(e^(s(z, z_glob)/τ) / (e^(s(z, z_glob)/τ) + e^(s(z, z_prev)/τ)))

z_glob under the weights received, z_prev under those that k ended its previous visit with; 0 where there was none.

    p = e^(s_prev/τ) / (e^(s_glob/τ) + e^(s_prev/τ))        ∂ℓ_con/∂z = (p/τ) (∂s_prev/∂z − ∂s_glob/∂z)
    ∂s(z, v)/∂z = v/(‖z‖ ‖v‖) − s z/‖z‖²
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.methods.fedsol import reference as fedsol
from tests.methods.fedsol.reference import Classes
from tests.reference.loop import Twin
from tests.reference.problem import Vec


class ServerWithMemory:
    """A server, and beside it what every client ended its last visit with; a lost visit leaves the older."""

    def __init__(self, server: Twin):
        self.server, self.in_rounds = server, server.in_rounds
        self.previous: dict[int, Vec] = {}

    @property
    def w(self) -> Vec:
        return self.server.w

    def start(self, m: int) -> Vec:
        return self.server.start(m)

    def receive(self, m: int, w_m: Vec) -> int:
        self.previous[m] = w_m
        return self.server.receive(m, w_m)

    def lose(self, m: int) -> None:
        self.server.lose(m)


def features(problem: Classes, m: int, w: Vec) -> Vec:
    A, a, _, _ = problem.parts(w)
    z: Vec = np.tanh(problem.data[m][0] @ A.T + a)
    return z


def cosine(z: Vec, v: Vec) -> tuple[Vec, Vec]:
    """s and ∂s/∂z, row by row."""
    sizes = [np.linalg.norm(t, axis=1, keepdims=True) for t in (z, v)]
    s = (z * v).sum(axis=1, keepdims=True) / (sizes[0] * sizes[1])
    return s, v / (sizes[0] * sizes[1]) - s * z / sizes[0] ** 2


def contrastive_gradient(problem: Classes, m: int, w: Vec, w_glob: Vec, w_prev: Vec | None, tau: float) -> Vec:
    """Of ℓ_con; nothing of it reaches the head."""
    out = np.zeros_like(w)
    if w_prev is None:
        return out
    z = features(problem, m, w)
    (s_glob, d_glob), (s_prev, d_prev) = (cosine(z, features(problem, m, v)) for v in (w_glob, w_prev))
    p = 1 / (1 + np.exp((s_glob - s_prev) / tau))
    du = p / tau * (d_prev - d_glob) / len(z) * (1 - z**2)
    body = np.concatenate([(du.T @ problem.data[m][0]).ravel(), du.sum(axis=0)])
    out[: len(body)] = body
    return out


@dataclass(frozen=True)
class Client:
    problem: Classes
    server: ServerWithMemory
    mu: float = 1.0
    temperature: float = 0.5

    def train(self, m: int, w_glob: Vec, *, steps: int, lr: float) -> Vec:
        w, w_prev = w_glob, self.server.previous.get(m)
        for _ in range(steps):
            con = contrastive_gradient(self.problem, m, w, w_glob, w_prev, self.temperature)
            w = w - lr * (self.problem.gradient(m, w) + self.mu * con)
        return w


@dataclass(frozen=True)
class SOLClient(fedsol.Client):
    """FedSOL's client, with ℓ_con for its proximal loss."""

    previous: dict[int, Vec] = field(default_factory=dict)

    def proximal_gradient(self, m: int, w: Vec, w_g: Vec) -> Vec:
        return contrastive_gradient(self.problem, m, w, w_g, self.previous.get(m), self.temperature)
