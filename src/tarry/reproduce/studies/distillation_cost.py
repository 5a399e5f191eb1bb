"""FedEcho, Sec. 5.1: seconds of a distillation on the server, and the past global models that it must keep.

    seconds        Q steps on the unlabeled inputs, by the library's own distillation; inputs and teacher are noise
    checkpoints    the most past global models that clients in flight began from, the present one not counted

Checkpoints depend on the delays alone, not on the model: they are counted in a run of a small model whose clients take
one step. The paper: 2.2 to 3.5 s, and at most 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from ...config.components import Choice
from ...config.spec import Spec
from ...core import rng
from ...core.events import Event
from ...core.layout import Layout
from ...core.method import ServerView
from ...core.optim import make_optimizer
from ...core.rng import Stream
from ...core.task import Task
from ...parts.distillation import Distillation, distill
from ...runs.build import build_run
from ...tasks.models import model_for
from ...training.determinism import deterministic
from ...training.flat_model import FlatModel, build_module
from ...training.server_model import FlatServerModel
from .series import line, short
from .study import Tell, begin
from .timing import machine, seconds
from .watch import run_observed

__all__ = ["PAPER", "QUICK", "PastModels", "run"]

PAPER: dict[str, Any] = {
    "model": {"name": "resnet18"},
    "shape": [3, 32, 32],
    "classes": 10,
    "inputs": 2000,
    "batch": 50,
    "repeats": 5,
    "delays": {"large": "fedecho-large", "mild": "fedecho-mild"},
    "clients": 50,
    "concurrency": 25,
    "buffer": 5,
    "rounds": 500,
}
QUICK: dict[str, Any] = {"model": {"name": "lenet5"}, "inputs": 200, "repeats": 1, "rounds": 60}


class PastModels:
    """The number of past global models that tickets in flight began from, after every instant."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}  # of the tickets in flight
        self.counts: list[tuple[int, int]] = []  # server steps so far, models

    def __call__(self, event: Event) -> None:
        if event.kind == "hand_out":
            self._versions[event.ticket] = event.version
        elif event.kind in ("arrival", "lost", "rejected"):
            self._versions.pop(event.ticket, None)
            self.counts.append((event.version, len(set(self._versions.values()) - {event.version})))


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: distillation, and the delays. One column, server. Measures: seconds, checkpoints."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    o, where = study.options, machine(device)
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for seed in seeds:
        with deterministic():
            took = study.piece(f"seconds-{seed}", [where, seed, o], partial(_time, o, seed, device))
        numbers.setdefault("distillation", {}).setdefault("server", {})[str(seed)] = {"seconds": short(took)}
        for name, delay in study.choices("delays").items():
            counts = study.piece(f"{name}-{seed}", [seed, o, name], partial(_count, o, delay, seed))
            most = {"checkpoints": max(n for _, n in counts)}
            numbers.setdefault(name, {}).setdefault("server", {})[str(seed)] = most
            if seed == seeds[0]:
                steps, models = [float(v) for v, _ in counts], [float(n) for _, n in counts]
                curves.setdefault("past global models", {})[name] = line(steps, models)
    model = f"{Choice.of(o['model'])}, {o['inputs']} inputs, batches of {o['batch']}"
    notes = [*study.notes, f"Seconds were measured on {where}: {model}."]
    return {"numbers": numbers, "curves": curves, "axes": {"x": "server steps", "y": "models"}, "notes": notes}


def _time(o: Mapping[str, Any], seed: int, device: str) -> float:
    return seconds({"distillation": distillation(o, seed, device)}, o["repeats"], device)["distillation"]


def distillation(o: Mapping[str, Any], seed: int, device: str) -> Callable[[], object]:
    """Return a function that makes one distillation of the default form."""
    model = Choice.of(o["model"])
    build = model_for(model.name, o["shape"], o["classes"], **model.params)
    noise = rng.generator(rng.key(seed, Stream.DATA, 6))
    inputs = torch.from_numpy(noise.standard_normal((o["inputs"], *o["shape"]), dtype="float32"))
    teacher = torch.from_numpy(noise.standard_normal((o["inputs"], o["classes"]), dtype="float32"))
    labels = torch.zeros(2, dtype=torch.int64)
    task = Task("noise", model=build, loss=cross_entropy, clients=[(inputs[:2], labels)], unlabeled=inputs)
    task = task.to(torch.float32, device)
    module = build_module(task, seed=seed, dtype=torch.float32).to(device)
    layout = Layout.of(module, task.clients[0][0])
    server = FlatServerModel(FlatModel(module, layout, task, make_optimizer(lr=1.0)))
    weights = layout.read(module, torch.float32)
    view = ServerView(weights, layout, 0, 0.0, 0, 1, stream=seed, decision=0, model=server)
    how = Distillation(batch=o["batch"])
    return lambda: distill(weights, teacher.to(device), view, how)


def _count(o: Mapping[str, Any], delay: Any, seed: int) -> list[tuple[int, int]]:
    made = build_run(
        Spec.of(
            {
                "method": {"name": "fedbuff", "buffer": o["buffer"]},
                "task": {"name": "digits", "model": "mlp"},
                "partition": {"name": "dirichlet", "alpha": 0.1},
                "clients": o["clients"],
                "concurrency": o["concurrency"],
                "delay": delay,
                "rounds": o["rounds"],
                "steps": 1,
                "batch": 1,
                "seed": seed,
                "device": "cpu",
            }
        )
    )
    count = PastModels()
    run_observed(made, callbacks=[count])
    return count.counts
