"""The model and the data of the app; nothing in this file is specific to tarry."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def get_weights(model: nn.Module) -> list[np.ndarray]:
    return [t.cpu().numpy() for t in model.state_dict().values()]


def set_weights(model: nn.Module, weights: list[np.ndarray]) -> None:
    tensors = {k: torch.tensor(a) for k, a in zip(model.state_dict(), weights, strict=True)}
    model.load_state_dict(tensors)


def _examples() -> tuple[Tensor, Tensor]:
    raw = load_digits()
    return torch.tensor(raw.data / 16.0, dtype=torch.float32), torch.tensor(raw.target)


def partition(i: int, n: int) -> tuple[Tensor, Tensor]:
    x, y = _examples()
    return x[300 + i :: n], y[300 + i :: n]


def test_set() -> tuple[Tensor, Tensor]:
    x, y = _examples()
    return x[:300], y[:300]
