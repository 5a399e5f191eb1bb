"""The model and the data of the app; nothing in this file is specific to tarry."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.hidden(x)))
        return out


def examples() -> tuple[Tensor, Tensor]:
    raw = load_digits()
    return torch.tensor(raw.data / 16.0, dtype=torch.float32), torch.tensor(raw.target)


def partition(i: int, n: int) -> tuple[Tensor, Tensor]:
    x, y = examples()
    return x[300 + i :: n], y[300 + i :: n]


def test_set() -> tuple[Tensor, Tensor]:
    x, y = examples()
    return x[:300], y[:300]
