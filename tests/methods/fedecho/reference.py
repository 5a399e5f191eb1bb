"""FedEcho, Algorithm 1: after M arrivals x̂ = x + η ΣΔ / M, then Q distillation steps on unlabeled inputs.

Every arrival leaves the logits of the client's model behind; the teacher is their mean. Each step goes against the
clipped gradient of α KL(σ(y) ‖ σ(ŷ)) + (1 − α) CE(ŷ, argmax y) by Adam, whose moments begin at 0 each time, or go on.

Its problem is a classifier of its own, since distillation needs classes:

    logits = tanh(x U) V + c,   loss = mean of −log σ(logits)[label]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import tarry
from tests.reference.problem import Vec


class Net(nn.Module):
    def __init__(self, U: Vec, V: Vec, c: Vec):
        super().__init__()
        self.U, self.V, self.c = (nn.Parameter(torch.from_numpy(a.copy())) for a in (U, V, c))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.U) @ self.V + self.c


def softmax(z: Vec) -> Vec:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class Classes:
    """Inputs (n × p) and labels (n) of every client; first weights, flat; unlabeled inputs of any leading shape."""

    p: int
    h: int
    C: int
    data: Sequence[tuple[Vec, npt.NDArray[np.int64]]]
    w0: Vec
    unlabeled: Vec
    mask: Vec | None = None

    @classmethod
    def draw(
        cls, seed: int, *, p: int, h: int, C: int, sizes: Sequence[int], shape: tuple[int, ...], masked: bool = False
    ) -> Classes:
        rng = np.random.default_rng(seed)
        data = [(rng.normal(size=(n, p)), rng.integers(C, size=n)) for n in sizes]
        w0 = rng.uniform(-1, 1, size=p * h + h * C + C)
        mask = rng.integers(2, size=shape).astype(float) if masked else None
        if mask is not None:
            mask[0] = 0.0  # an input none of whose tokens counts
        return cls(p, h, C, data, w0, rng.normal(size=(*shape, p)), mask)

    def parts(self, w: Vec) -> tuple[Vec, Vec, Vec]:
        a, b = self.p * self.h, self.p * self.h + self.h * self.C
        return w[:a].reshape(self.p, self.h), w[a:b].reshape(self.h, self.C), w[b:]

    def logits(self, w: Vec, x: Vec) -> Vec:
        U, V, c = self.parts(w)
        return np.tanh(x @ U) @ V + c

    def back(self, w: Vec, x: Vec, d: Vec) -> Vec:
        """The gradient over w of something whose gradient over the logits of x is d."""
        U, V, _ = self.parts(w)
        x, d = x.reshape(-1, self.p), d.reshape(-1, self.C)
        z = np.tanh(x @ U)
        dz = (d @ V.T) * (1 - z**2)
        return np.concatenate([(x.T @ dz).ravel(), (z.T @ d).ravel(), d.sum(axis=0)])

    def train(self, m: int, w: Vec, *, steps: int, lr: float) -> Vec:
        """Plain full-batch gradient descent on client m's loss."""
        x, y = self.data[m]
        for _ in range(steps):
            w = w - lr * self.back(w, x, (softmax(self.logits(w, x)) - np.eye(self.C)[y]) / len(y))
        return w

    def task(self, **more: Any) -> tarry.Task:
        return tarry.Task(
            "twin",
            model=Net(*self.parts(self.w0)),
            loss=nn.functional.cross_entropy,
            clients=[(torch.from_numpy(x), torch.from_numpy(y)) for x, y in self.data],
            metrics=["loss"],
            unlabeled=torch.from_numpy(self.unlabeled),
            unlabeled_mask=None if self.mask is None else torch.from_numpy(self.mask).bool(),
            **more,
        )


@dataclass
class FedEcho:
    problem: Classes
    M: int
    eta: float
    eta_d: float
    batches: Callable[[int], list[npt.NDArray[np.int64]]]  # the Q batches of the step made at the k-th arrival
    alpha: float | None = None  # None = by entropy
    alpha_min: float = 0.2
    alpha_max: float = 0.8
    nu: float = np.inf
    optimizer: str = "adam"
    teacher: str = "logits"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    moments: str = "restart"

    in_rounds = False

    def __post_init__(self) -> None:
        self.w = self.problem.w0
        self.t = self.arrivals = self.steps = 0
        self.first = self.second = np.zeros_like(self.w)
        self.handed: dict[int, tuple[int, Vec]] = {}
        self.buffer: list[Vec] = []
        self.y: dict[int, Vec] = {}
        self.norms: list[float] = []
        self.alphas: list[float] = []
        self.entropies: list[float] = []

    def start(self, m: int) -> Vec:
        self.handed[m] = (self.t, self.w)
        return self.w

    def receive(self, m: int, w_m: Vec) -> int:
        t_then, given = self.handed[m]
        tau = self.t - t_then
        self.arrivals += 1
        self.buffer.append(w_m - given)
        self.y[m] = self.problem.logits(w_m, self.problem.unlabeled)
        if len(self.buffer) == self.M:
            x = self.w + self.eta * sum(self.buffer) / self.M
            rows = list(self.y.values())
            mean = (
                np.log(np.mean([softmax(y) for y in rows], axis=0)) if self.teacher == "outputs" else np.mean(rows, 0)
            )
            self.w = self.distill(x, mean)
            self.buffer = []
            self.t += 1
        return tau

    def lose(self, m: int) -> None:
        pass

    def distill(self, x: Vec, teacher: Vec) -> Vec:
        if self.moments == "restart":
            self.steps, self.first, self.second = 0, np.zeros_like(x), np.zeros_like(x)
        b1, b2 = self.beta1, self.beta2
        for B in self.batches(self.arrivals):
            g = self.gradient(x, B, teacher[B])
            norm = float(np.linalg.norm(g))
            self.norms.append(norm)
            if norm > self.nu:
                g = g * self.nu / norm
            if self.optimizer == "sgd":
                x = x - self.eta_d * g
                continue
            self.steps += 1
            self.first = b1 * self.first + (1 - b1) * g
            self.second = b2 * self.second + (1 - b2) * g**2
            first, second = self.first / (1 - b1**self.steps), self.second / (1 - b2**self.steps)
            x = x - self.eta_d * first / (np.sqrt(second) + self.eps)
        return x

    def gradient(self, x: Vec, B: npt.NDArray[np.int64], y: Vec) -> Vec:
        """Of f_d: that of KL over the student's logits is σ(ŷ) − σ(y), that of CE is σ(ŷ) − e_argmax."""
        problem = self.problem
        p, q = softmax(y), softmax(problem.logits(x, problem.unlabeled[B]))
        counts = np.ones(y.shape[:-1]) if problem.mask is None else problem.mask[B]
        share = counts / max(counts.sum(), 1)  # of every token in the mean
        entropy = float((share * -(p * np.log(p)).sum(axis=-1)).sum() / np.log(problem.C))
        alpha = entropy * self.alpha_max + (1 - entropy) * self.alpha_min if self.alpha is None else self.alpha
        self.alphas.append(alpha)
        self.entropies.append(entropy)
        hard = np.eye(problem.C)[y.argmax(axis=-1)]
        d = alpha * (q - p) + (1 - alpha) * (q - hard)
        return problem.back(x, problem.unlabeled[B], share[..., None] * d)
