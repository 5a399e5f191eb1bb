"""Small models, losses and data that several tests train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import tarry
from tarry.core.task import Examples


class Vector(nn.Module):
    """A model whose only weights are one vector."""

    def __init__(self, start: Tensor | Sequence[float]):
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(start, dtype=getattr(start, "dtype", torch.float64)).clone())


class Shift(Vector):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.w


class Scale(Vector):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class InnerProduct(Vector):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * ((outputs - targets) ** 2).sum()


def half_mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * ((outputs - targets) ** 2).mean()


def towards(*targets: Sequence[float]) -> tarry.Task:
    """A task on whose client k, ½ ‖w − targets[k]‖², training goes straight towards the target from 0."""
    size = len(targets[0])
    eye = torch.eye(size, dtype=torch.float64)
    data = [(eye, torch.tensor(target, dtype=torch.float64)) for target in targets]
    return tarry.Task("towards", model=InnerProduct([0.0] * size), loss=half_square, clients=data, metrics=["loss"])


class Tied(nn.Module):
    """The first and the last layer share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.middle = nn.Linear(3, 3)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.middle(self.embed(x))))
        return out


def batchnorm_net(
    n_inputs: int,
    hidden: int,
    n_classes: int,
    *before_last: nn.Module,
    activation: type[nn.Module] = nn.ReLU,
    momentum: float | None = 0.1,
    seed: int,
) -> nn.Sequential:
    """Linear, BatchNorm1d, the activation, more modules and Linear; the seed draws the weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        norm = nn.BatchNorm1d(hidden, momentum=momentum)
        first, last = nn.Linear(n_inputs, hidden), nn.Linear(hidden, n_classes)
    return nn.Sequential(first, norm, activation(), *before_last, last)


def random_clients(
    sizes: Sequence[int], n_inputs: int, n_classes: int, *, seed: int, scales: Iterable[float] | None = None
) -> list[Examples]:
    """Clients of these sizes with normal inputs, times the scale of the client, and random labels."""
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(n, n_inputs, generator=g) * scale, torch.randint(n_classes, (n,), generator=g))
        for n, scale in zip(sizes, scales or [1.0] * len(sizes), strict=True)
    ]


def noisy_run(method: Any, *, rounds: int = 3) -> str:
    """Return the hash of a short run of a model with dropout and BatchNorm, on clients with momentum."""
    model = batchnorm_net(4, 5, 3, nn.Dropout(0.3), seed=6)
    task = tarry.Task(
        "noisy", model=model, loss=nn.functional.cross_entropy, clients=random_clients((6, 10), 4, 3, seed=0)
    )
    how = {"delay": [1.0, 2.0], "rounds": rounds, "epochs": 2, "batch": 4, "lr": 0.1, "momentum": 0.9}
    return tarry.run(method, task, **how).weights_sha256
