"""Small models, losses and data that several tests train."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import tarry


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
    return tarry.Task("towards", model=InnerProduct([0.0] * size), loss=half_square, clients=data, score=None)


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
