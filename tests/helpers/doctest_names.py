"""The names that the examples in docstrings use without an import: tarry, torch, and a client's model in a visit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

import tarry
from tarry.core.optim import make_optimizer
from tarry.training.flat_model import FlatModel
from tarry.training.visit import BatchIterator, LocalWork

__all__ = ["doctest_names"]


def doctest_names() -> dict[str, Any]:
    """Return fresh objects: f(x) = w·x with w = (1, 2), squared error, targets 0, SGD with lr 0.1, and a visit at w."""
    module, batch, w = nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), torch.tensor([1.0, 2.0])
    layout = tarry.Layout.of(module)
    task = tarry.Task("dot product", model=lambda: module, loss=mse_loss, clients=[batch], metrics=["loss"])
    sgd = make_optimizer("sgd", lr=0.1)
    model = FlatModel(module, layout, task, sgd)
    model.visit = BatchIterator(w, batch, LocalWork(sgd), key=0)
    visit = tarry.VisitInput(w, {}, {}, layout, n_steps=1, n_batches=1)
    return {"tarry": tarry, "torch": torch, "model": model, "w": w, "batch": batch, "visit": visit}
