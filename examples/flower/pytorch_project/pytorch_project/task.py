"""The model, the data and the training loop of the project; nothing in this file is specific to tarry."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.out = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.features(x).flatten(1))
        return out


def _images() -> tuple[Tensor, Tensor]:
    raw = load_digits()
    return torch.tensor(raw.images / 16.0, dtype=torch.float32).unsqueeze(1), torch.tensor(raw.target)


def load_data(partition: int, partitions: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Return the images of one client for training, and some that are left out of it."""
    x, y = (t[400 + partition :: partitions] for t in _images())
    cut = len(x) * 4 // 5
    train = DataLoader(TensorDataset(x[:cut], y[:cut]), batch_size=batch_size, shuffle=True)
    return train, DataLoader(TensorDataset(x[cut:], y[cut:]), batch_size=256)


def load_test_set() -> DataLoader:
    x, y = (t[:400] for t in _images())
    return DataLoader(TensorDataset(x, y), batch_size=256)


def train(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], epochs: int, lr: float) -> float:
    """Train; return the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    losses: list[float] = []
    for _ in range(epochs):
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / max(1, len(losses))


@torch.no_grad()
def test(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    net.eval()
    loss, right, count = 0.0, 0, 0
    for x, y in batches:
        outputs = net(x)
        loss += cross_entropy(outputs, y, reduction="sum").item()
        right += int((outputs.argmax(1) == y).sum())
        count += len(y)
    return loss / count, right / count
