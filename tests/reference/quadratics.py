"""Clients that pull to different places with different strength: F_k(w) = ½ Σ_i s_k,i (w_i − b_k,i)².

The mean of all is least at Σ s_k b_k / Σ s_k; where a server that averages many local steps ends is another place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tarry
from tests.helpers.models import InnerProduct, half_square
from tests.reference.problem import Vec

STRENGTH = np.array([[1.0, 0.2], [0.1, 2.0], [0.5, 0.5]])
PLACE = np.array([[4.0, -1.0], [-3.0, 2.0], [0.0, 5.0]])


def pulling(strength: Vec = STRENGTH, place: Vec = PLACE) -> tarry.Task:
    """A row an equation: √s_i w_i = √s_i b_i."""
    roots = [torch.from_numpy(np.sqrt(s)) for s in strength]
    data = [(torch.diag(r), r * torch.from_numpy(b)) for r, b in zip(roots, place, strict=True)]
    return tarry.Task(
        "pulling", model=InnerProduct([0.0] * strength.shape[1]), loss=half_square, clients=data, metrics=["loss"]
    )


def minimizer(strength: Vec = STRENGTH, place: Vec = PLACE) -> Vec:
    least: Vec = (strength * place).sum(axis=0) / strength.sum(axis=0)
    return least


def globals_of(method: Any, task: tarry.Task, **setup: Any) -> list[Vec]:
    """W after every server step; whole batches in double precision, everybody as fast, unless told otherwise."""
    seen: list[tarry.Event] = []
    n = len(task.clients)
    plain: dict[str, Any] = {"dtype": "float64", "batch": "all", "delay": [1.0] * n, "callbacks": [seen.append]}
    tarry.run(method, task, **{**plain, **setup})
    return [e.weights.numpy() for e in seen if e.stepped]


def memories(method: Any, task: tarry.Task, look: Any, **setup: Any) -> Any:
    """Run to the end, and `look` at the simulator whenever the server has closed a round."""
    from tarry.config.spec import Spec
    from tarry.runs.build import build_run
    from tarry.runs.simulation import Simulation

    plain: dict[str, Any] = {"dtype": "float64", "batch": "all", "delay": [1.0] * len(task.clients)}
    made = build_run(Spec.of({"method": method, "task": task, **plain, **setup}))
    executor = Simulation(made).executor()
    sim = Simulation(made).simulator(executor, [])
    closed = [0]

    def between() -> None:
        if sim.server.version > closed[0]:
            closed[0] = sim.server.version
            look(sim)

    sim.run(between)
    executor.close()
    return sim


def rows(sim: Any, name: str, n: int) -> Sequence[Tensor]:
    """What every client keeps under that name; 0 for those that have not been there."""
    kept = sim._memories.get(name) or {}
    zero = torch.zeros(sim.server.layout.n_params, dtype=torch.float64)
    return [zero if (row := kept.get(k)) is None else row for k in range(n)]
