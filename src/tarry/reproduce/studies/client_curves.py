"""OrthoFL, Fig. 6: how clients' own models do on held-out examples of their own, over the updates they receive.

A part of every client's examples is held out, the same for all methods. At every visit the weights that the client was
given are scored on it, and those that it sent back:

    accuracy   of what was given, per cent, and its loss
    drop       what merging cost: accuracy of what was sent back less that of what the client is given next, where it
               is lower, else 0
    spike      the same of the loss: how much higher it is

The paper shows FedAsync and OrthoFL on CIFAR-10 for some clients; numbers here are means over the visits of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ...core import rng
from ...core.errors import BadInput
from ...core.method import ServerView
from ...core.rng import Stream
from ...core.task import Examples, Task
from ...core.tickets import Update
from ...runs.build import BuiltRun
from .series import line, short
from .study import Study, Tell, begin
from .watch import model_of, run_observed

__all__ = ["PAPER", "QUICK", "Visits", "held_out", "run"]

PAPER: dict[str, Any] = {
    "settings": {
        "task": {"name": "cifar10", "model": "vgg11"},
        "clients": 10,
        "partition": {"name": "dirichlet", "alpha": 0.1},
        "delay": "orthofl-rpi",
        "updates": 500,
        "epochs": 5,
        "batch": 128,
        "lr": 0.01,
    },
    "stand_ins": [],
    "methods": {
        "fedasync": "fedasync",
        "orthofl": "orthofl",
        "orthofl-reference": {"name": "orthofl", "state": "reference"},
    },
    "held_out": 0.2,
    "shown": 4,
}
QUICK: dict[str, Any] = {
    "settings": {"task": {"name": "digits", "model": "mlp"}, "updates": 150, "batch": 32, "lr": 0.05},
}


def held_out(task: Task, share: float, seed: int) -> tuple[Task, list[Examples]]:
    """The task without a random part of every client's examples, and these parts; every client keeps some."""
    if not 0 < share < 1:
        raise BadInput(f"[study_options] held_out {share}: must be between 0 and 1")
    train_parts, out = list[Examples](), list[Examples]()
    for client, (x, y) in enumerate(task.clients):
        if len(x) < 2:
            raise BadInput(f"[study_options] settings: client {client} has {len(x)} example; none can be held out")
        order = torch.from_numpy(rng.permutation(rng.key(seed, Stream.DATA, 5, client), len(x))).to(x.device)
        n = min(len(x) - 1, max(1, round(share * len(x))))
        out.append((x[order[:n]], y[order[:n]]))
        train_parts.append((x[order[n:]], y[order[n:]]))
    return replace(task, clients=train_parts), out


class Visits:
    """Every visit's scores by client: [given accuracy, given loss, sent accuracy, sent loss]."""

    def __init__(self, made: BuiltRun, examples: Sequence[Examples]):
        self._bound, self._examples = model_of(made), examples
        self.by_client: dict[int, list[list[float]]] = {}

    def __call__(self, update: Update, _: ServerView) -> None:
        client, scores = update.ticket.client, list[float]()
        for weights in (update.ticket.sent, update.local):
            found = self._bound.evaluate(weights, self._examples[client])
            scores += [100 * found["accuracy"], found["loss"]]
        self.by_client.setdefault(client, []).append(scores)


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: methods. One column, clients (the mean over them). Measures: accuracy, loss, drop, spike."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for name, choice in study.choices("methods").items():
        for seed in seeds:
            visits = _piece(study, seed, name, choice)
            numbers.setdefault(name, {}).setdefault("clients", {})[str(seed)] = _numbers(visits)
            if seed == seeds[0]:
                _draw_into(curves, name, visits, study.options["shown"])
    axes = {"x": "updates received", "y": "on held-out examples of the client's own"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": study.notes}


def _piece(study: Study, seed: int, name: str, choice: Any) -> dict[str, list[list[float]]]:
    changes, share = {"method": choice}, study.options["held_out"]

    def make() -> dict[str, list[list[float]]]:
        made = study.plan(seed, changes)
        task, examples = held_out(made.task, share, seed)
        made = replace(made, task=task)
        see = Visits(made, examples)
        run_observed(made, see, tell=study.tell, what=f"{name}, seed {seed}")
        return {str(client): rows for client, rows in sorted(see.by_client.items())}

    found: dict[str, list[list[float]]] = study.piece(f"{name}-{seed}", [study.settings(changes), seed, share], make)
    return found


def _numbers(visits: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, float]:
    every = [row for rows in visits.values() for row in rows]
    follow = [(before, after) for rows in visits.values() for before, after in pairwise(rows)]
    drops = [max(0.0, before[2] - after[0]) for before, after in follow]
    spikes = [max(0.0, after[1] - before[3]) for before, after in follow]
    found = {"accuracy": fmean(r[0] for r in every), "loss": fmean(r[1] for r in every)}
    found |= {"drop": fmean(drops or [0.0]), "spike": fmean(spikes or [0.0])}
    return {name: short(value) for name, value in found.items()}


def _draw_into(curves: dict[str, Any], name: str, visits: Mapping[str, Any], shown: int) -> None:
    """Draw the clients with the most visits; methods share them, since the visits are the same for all methods."""
    most_frequent = sorted(visits, key=lambda c: (-len(visits[c]), int(c)))[:shown]
    for client in most_frequent:
        rows = visits[client]
        for i, measure in enumerate(("accuracy", "loss")):
            panel = curves.setdefault(f"{measure}, client {client}", {})
            panel[name] = line(list(range(len(rows))), [r[i] for r in rows])
