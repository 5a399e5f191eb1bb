"""FedSOL's client (Algorithm 1, Eq. 3, 5–8, Table 12) on a small classifier with gradients by hand.

    h = tanh(x Aᵀ + a),   z = h Bᵀ + b,   L = mean cross-entropy of softmax(z)      four layers: A, a, and the head B, b

L_p is ½‖w − w_g‖² or the mean of KL(softmax(z_g/T) ‖ softmax(z/T)). Where a formula says 0/0, it is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import tarry
from tests.reference.problem import Vec

Labels = npt.NDArray[np.int64]


class Net(nn.Module):
    """`after`: a log-softmax follows the head; neither cross-entropy nor KL is changed by it."""

    def __init__(self, A: Vec, a: Vec, B: Vec, b: Vec, *, after: bool = False):
        super().__init__()
        self.body = nn.Linear(*A.T.shape, dtype=torch.float64)
        self.head = nn.Linear(*B.T.shape, dtype=torch.float64)
        for tensor, value in zip(self.parameters(), (A, a, B, b), strict=True):
            tensor.data = torch.from_numpy(value.copy())
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(torch.tanh(self.body(x)))
        return torch.log_softmax(z, 1) if self.after else z


def softmax(z: Vec) -> Vec:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    out: Vec = e / e.sum(axis=1, keepdims=True)
    return out


@dataclass(frozen=True)
class Classes:
    """Inputs (n × p) and labels (n) of every client; first weights, flat; p inputs, h hidden, k classes."""

    p: int
    h: int
    k: int
    data: Sequence[tuple[Vec, Labels]]
    w0: Vec
    after: bool = False

    @classmethod
    def draw(cls, seed: int, *, p: int, h: int, k: int, sizes: Sequence[int], after: bool = False) -> Classes:
        rng = np.random.default_rng(seed)
        data = [(rng.normal(size=(n, p)), rng.integers(k, size=n)) for n in sizes]
        return cls(p, h, k, data, rng.normal(size=h * p + h + k * h + k), after)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.h, self.p), (self.h,), (self.k, self.h), (self.k,)]

    def layers(self, part: str = "all") -> list[tuple[slice, tuple[int, ...]]]:
        ends = np.cumsum([0, *(np.prod(s) for s in self.shapes)])
        every = [(slice(int(i), int(j)), s) for (i, j), s in zip(pairwise(ends), self.shapes, strict=True)]
        return {"all": every, "body": every[:2], "head": every[2:]}[part]

    def parts(self, w: Vec) -> list[Vec]:
        return [w[at].reshape(shape) for at, shape in self.layers()]

    def outputs(self, m: int, w: Vec) -> Vec:
        A, a, B, b = self.parts(w)
        z: Vec = np.tanh(self.data[m][0] @ A.T + a) @ B.T + b
        return z

    def back(self, m: int, w: Vec, dz: Vec) -> Vec:
        """The gradient of a loss whose gradient in z is dz."""
        A, a, B, _ = self.parts(w)
        x = self.data[m][0]
        hidden = np.tanh(x @ A.T + a)
        du = (dz @ B) * (1 - hidden**2)
        return np.concatenate([(du.T @ x).ravel(), du.sum(axis=0), (dz.T @ hidden).ravel(), dz.sum(axis=0)])

    def gradient(self, m: int, w: Vec) -> Vec:
        y = self.data[m][1]
        return self.back(m, w, (softmax(self.outputs(m, w)) - np.eye(self.k)[y]) / len(y))

    def task(self) -> tarry.Task:
        clients = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in self.data]
        model = Net(*self.parts(self.w0), after=self.after)
        return tarry.Task("classes", model=model, loss=nn.functional.cross_entropy, clients=clients, metrics=["loss"])


@dataclass(frozen=True)
class Client:
    """A client's way from w_g, plain gradient descent on the whole of its data."""

    problem: Classes
    rho: float = 2.0
    proximal: str = "kl"
    temperature: float = 3.0
    adaptive: bool = True
    part: str = "head"
    norm: str = "layer"
    strategy: str = "A1"
    beta: float = 1.0

    def proximal_gradient(self, m: int, w: Vec, w_g: Vec) -> Vec:
        if self.proximal == "l2":
            return w - w_g
        p, q = (softmax(self.problem.outputs(m, v) / self.temperature) for v in (w_g, w))
        return self.problem.back(m, w, (q - p) / (self.temperature * len(p)))

    def epsilon(self, w: Vec, w_g: Vec, g: Vec) -> Vec:
        eps, square = np.zeros_like(w), 0.0
        for at, shape in self.problem.layers(self.part):
            square += (g[at] ** 2).sum()
            lam = np.ones(shape)
            if self.adaptive:
                d = np.abs(w[at] - w_g[at]).reshape(shape)
                length = np.sqrt((d**2).sum(axis=0 if self.norm == "dim0" else None))
                lam = d / np.where(length > 0, length, 1.0)
            eps[at] = self.rho * lam.ravel() * g[at]
        return eps / np.sqrt(square) if square > 0 else np.zeros_like(w)

    def direction(self, m: int, w: Vec, w_g: Vec) -> Vec:
        def local(v: Vec) -> Vec:
            return self.problem.gradient(m, v)

        def prox(v: Vec) -> Vec:
            return self.proximal_gradient(m, v, w_g)

        g_l, g_p, beta = local(w), prox(w), self.beta
        eps_p = self.epsilon(w, w_g, g_p)
        eps_c = self.epsilon(w, w_g, g_l + beta * g_p)
        if self.strategy == "projection":
            return g_l - (g_l @ g_p) / (g_p @ g_p) * g_p if g_l @ g_p < 0 else g_l
        return {
            "A0": lambda: g_l,
            "A1": lambda: local(w + eps_p),
            "A2": lambda: g_l + beta * prox(w + eps_p),
            "A3": lambda: local(w + eps_p) + beta * prox(w + eps_p),
            "A4": lambda: local(w + eps_c) + beta * prox(w + eps_c),
            "A5": lambda: g_l + beta * g_p,
            "A6": lambda: local(w + eps_p) + beta * g_p,
        }[self.strategy]()

    def train(self, m: int, w_g: Vec, *, steps: int, lr: float) -> Vec:
        w = w_g
        for _ in range(steps):
            w = w - lr * self.direction(m, w, w_g)
        return w
