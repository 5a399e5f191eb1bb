"""Small runs that tests work out by hand: the loss of client m is ½‖θ − c_m‖², a visit is one step of length ½.

So θ ← (θ + c_m)/2. Almost all numbers are sums of powers of two, which floating point represents exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import tarry
from tests.helpers.models import Shift


def half_square_distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * ((outputs - targets) ** 2).sum(dim=1).mean()


def globals_after(
    method: Any,
    optima: Sequence[Sequence[float]],
    delay: list[list[float]],
    *,
    updates: int,
    examples: Sequence[int] = (1, 1),
    steps: int = 1,
) -> list[tuple[float, int, int, list[float]]]:
    """(time, client, staleness, θ) of every arrival, from θ = 0."""
    d = len(optima[0])
    data = [(torch.zeros(n, d), torch.tensor([list(c)] * n)) for c, n in zip(optima, examples, strict=True)]
    task = tarry.Task("points", model=Shift([0.0] * d), loss=half_square_distance, clients=data, metrics=["loss"])
    seen: list[tarry.Event] = []
    tarry.run(
        method,
        task,
        dtype="float64",
        batch="all",
        steps=steps,
        lr=0.5,
        delay=delay,
        updates=updates,
        callbacks=[seen.append],
    )
    return [(e.time, e.client, e.staleness, e.weights.tolist()) for e in seen if e.kind == "arrival"]
