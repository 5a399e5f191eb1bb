"""Tasks of benchmarks/large_model.py: the digits, with an MLP of five layers of which none has most of the weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

import tarry

__all__ = ["n_weights", "wide"]


def wide(width: int = 8) -> tarry.Task:
    """The first hundred digits."""
    return replace(tarry.tasks["digits"](limit=100), name="wide digits", model=partial(_mlp, width))


def n_weights(width: int) -> int:
    return 65 * width + 4 * (width + 1) * width + 10 * (width + 1)


def _mlp(width: int) -> nn.Sequential:
    hidden = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), *hidden, nn.Linear(width, 10))
