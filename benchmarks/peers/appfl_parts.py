"""Objects that APPFL loads by file name: the model, a client's data, a metric."""

from __future__ import annotations

from typing import Any

from torch.utils.data import TensorDataset
from workload import LeNet5, shard

__all__ = ["LeNet5", "accuracy", "dataset"]


def dataset(client: int, samples: int) -> tuple[TensorDataset, None]:
    """Training data, and no validation data."""
    return TensorDataset(*shard(client, samples)), None


def accuracy(true: Any, predicted: Any) -> float:
    return float((predicted.argmax(axis=1) == true).mean())
