"""OrthoFL, Fig. 1b: a fast and a slow client with half of the classes each pull the global in opposite directions.

At every update, the change of the weights of the last hidden layer: over updates and neurons in the picture (the mean
over a neuron's incoming weights), and in numbers the cosine between the change by one update and by the next one,

    fast-fast      both of the fast client
    slow-fast      the fast client's first after the slow one's
    fast-slow      the slow client's after the fast one's

FedAsync with β = 0.6 and a = 0.5, MNIST and LeNet5, 10 s against 30, 60 or 100 s. Fig. 1a is a plain grid of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadInput
from ...core.events import Event
from ...core.layout import Block, Kind, Layout
from .canvas import panels
from .series import short
from .study import Study, Tell, begin
from .watch import run_observed

__all__ = ["PAPER", "QUICK", "cosines", "draw", "hidden_layer", "run"]

PAPER: dict[str, Any] = {
    "settings": {
        "task": {"name": "mnist", "model": "lenet5"},
        "method": {"name": "fedasync", "alpha": 0.6, "a": 0.5},
        "clients": 2,
        "partition": "halves",
        "time": 1000.0,
        "epochs": 5,
        "batch": 128,
        "lr": 0.01,
    },
    "stand_ins": [],
    "fast": 10.0,
    "slow": [30.0, 60.0, 100.0],
    "shown": 60,
}
QUICK: dict[str, Any] = {
    "settings": {"task": {"name": "digits", "model": "mlp"}, "time": 600.0, "batch": 32},
    "shown": 40,
}
_SLOW = 1  # the client's number


def hidden_layer(layout: Layout) -> Block:
    """The last map before the head."""
    maps = [b for b in layout.layers if len(b.shape) > 1 and b.kind is Kind.PARAM]
    if not maps:
        raise BadInput("[study_options] settings.task: its model has no hidden layer; use lenet5, mlp or another")
    return maps[-1]


class _Changes:
    """The changes of the hidden layer, one for each update."""

    def __init__(self, block: Block):
        self._block = block
        self._last: Tensor | None = None
        self.clients: list[int] = []
        self.changes: list[Tensor] = []

    def __call__(self, event: Event) -> None:
        here = event.weights[self._block.at]
        if event.kind == "arrival" and event.stepped and self._last is not None:
            self.clients.append(event.client)
            self.changes.append((here - self._last).cpu())
        self._last = here


def cosines(clients: Sequence[int], changes: Sequence[Tensor]) -> dict[str, float]:
    """The mean cosine between successive changes, by whose they are; pairs that do not occur are left out."""
    found: dict[str, list[float]] = {}
    for (a, x), (b, y) in pairwise(zip(clients, changes, strict=True)):
        name = "-".join("slow" if c == _SLOW else "fast" for c in (a, b))
        found.setdefault(name, []).append(float(torch.nn.functional.cosine_similarity(x, y, dim=0)))
    return {name: fmean(values) for name, values in found.items()}


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: fast-fast, slow-fast, fast-slow. Columns: the slow client's seconds. Measure: cosine."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, Any] = {}
    heat: dict[str, Any] = {}
    for slow in study.options["slow"]:
        for seed in seeds:
            found = _piece(study, seed, slow)
            for row in ("fast-fast", "slow-fast", "fast-slow"):
                if row in found["cosines"]:
                    value = {"cosine": short(found["cosines"][row])}
                    numbers.setdefault(row, {}).setdefault(f"{slow:g}", {})[str(seed)] = value
            if seed == seeds[0]:
                heat[f"{slow:g}"] = {"slow": found["slow"], "z": found["heat"]}
    last = heat[f"{study.options['slow'][-1]:g}"]  # the paper shows the slowest
    return {"numbers": numbers, "heat": last, "notes": study.notes}


def _piece(study: Study, seed: int, slow: float) -> dict[str, Any]:
    o = study.options
    changes = {"delay": {"name": "scripted", "durations": [o["fast"], slow]}}

    def make() -> dict[str, Any]:
        made = study.plan(seed, changes)
        block = hidden_layer(made.layout)
        seen = _Changes(block)
        run_observed(made, callbacks=[seen], tell=study.tell, what=f"slow client {slow:g} s, seed {seed}")
        shown = seen.changes[-o["shown"] :]  # the last ones
        by_neuron = [[short(v) for v in c.view(block.shape[0], -1).mean(1).tolist()] for c in shown]
        slow_at = [i for i, c in enumerate(seen.clients[-o["shown"] :]) if c == _SLOW]
        return {"cosines": cosines(seen.clients, seen.changes), "slow": slow_at, "heat": by_neuron}

    found: dict[str, Any] = study.piece(f"slow-{slow:g}-{seed}", [study.settings(changes), seed, o["shown"]], make)
    return found


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Neurons over updates: red where weights grow, blue where they shrink; ticks at the slow client's updates."""
    z = torch.tensor(result["heat"]["z"]).T
    limit = float(z.abs().quantile(0.99))
    with panels(path, 1, 1, width=6.5, height=3.2) as axes:
        ax = axes[0][0]
        drawn = ax.imshow(z.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        ax.figure.colorbar(drawn, ax=ax, label="change of the weights")
        ax.set(xlabel="update (marked: the slow client's)", ylabel="neuron")
        ax.set_xticks(result["heat"]["slow"])
