"""FedSOL, Table 13: how long a local step takes, relative to FedAvg's. A measurement: numbers are this machine's.

A visit of `steps` steps is timed whole, in the one training loop of the library, and divided by them. Inputs are noise,
on which the time does not depend; every example comes once, so what a received model says of it is worked out in every
step. FedSOL has the l2 proximal loss and perturbs the head, as in the paper. Its ResNet-18 sees ImageNet-100 on an
A6000; the one here is the form for small images, on 64×64. Only ratios can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...config.components import Choice
from ...core import rng
from ...core.layout import Layout
from ...core.local_rule import LocalRule
from ...core.optim import make_optimizer
from ...core.rng import Stream
from ...core.task import Task
from ...core.tickets import VisitJob
from ...methods import methods
from ...tasks.models import model_for
from ...training.determinism import deterministic
from ...training.flat_model import FlatModel, build_module
from ...training.visit import LocalWork, train
from .series import short
from .study import Study, Tell, begin
from .timing import machine, seconds

__all__ = ["PAPER", "QUICK", "bench", "run", "visit_of"]

PAPER: dict[str, Any] = {
    "model": {"name": "resnet18"},
    "shape": [3, 64, 64],
    "classes": 100,
    "batch": 64,
    "steps": 10,
    "repeats": 20,
    "methods": {
        "fedavg": "fedavg",
        "fedprox": {"name": "fedprox", "mu": 1.0},
        "fedntd": "fedntd",
        "fedsam": {"name": "fedsam", "rho": 0.1},
        "fedsol": {"name": "fedsol", "rho": 2.0, "proximal": "l2"},
    },
}
QUICK: dict[str, Any] = {
    "model": {"name": "cnn"},
    "shape": [1, 28, 28],
    "classes": 10,
    "batch": 32,
    "steps": 3,
    "repeats": 3,
}


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: methods. One column, step. Measures: seconds, relative (to fedavg, or the first row)."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    o = study.options
    with deterministic():
        return _summary(study, o, machine(device))


def _summary(study: Study, o: Mapping[str, Any], where: str) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for seed in study.seeds:
        inputs = [where, seed, {name: o[name] for name in PAPER}]
        took = study.piece(f"latency-{seed}", inputs, partial(_measure, o, seed, study.device))
        base = took.get("fedavg", next(iter(took.values())))
        for name, value in took.items():
            found = {"seconds": short(value), "relative": short(value / base)}
            numbers.setdefault(name, {}).setdefault("step", {})[str(seed)] = found
    model = f"{Choice.of(o['model'])}, {'×'.join(map(str, o['shape']))}, batch {o['batch']}"
    return {"numbers": numbers, "notes": [*study.notes, f"Measured on {where}: {model}."]}


def _measure(o: Mapping[str, Any], seed: int, device: str) -> dict[str, float]:
    bound, work, sent = bench(o, seed, device)
    chosen = {name: Choice.of(c) for name, c in o["methods"].items() if c != "none"}
    rules = {name: methods.build(c.name, **c.params).local for name, c in chosen.items()}
    took = seconds(
        {name: visit_of(rule, bound, work, sent, seed) for name, rule in rules.items()}, o["repeats"], device
    )
    return {name: value / o["steps"] for name, value in took.items()}


def visit_of(rule: LocalRule, bound: FlatModel, work: LocalWork, sent: Tensor, seed: int) -> Callable[[], object]:
    """Return a function that trains one visit."""
    return lambda: train(VisitJob(0, 0, 0, sent), bound, rule=rule, work=work, seed=seed)


def bench(o: Mapping[str, Any], seed: int, device: str) -> tuple[FlatModel, LocalWork, Tensor]:
    """Return a model on one client's noise, as many batches as there are steps."""
    model = Choice.of(o["model"])
    build = model_for(model.name, o["shape"], o["classes"], **model.params)
    noise, n = rng.generator(rng.key(seed, Stream.DATA, 3)), o["batch"] * o["steps"]
    x = torch.from_numpy(noise.standard_normal((n, *o["shape"]), dtype="float32"))
    y = torch.from_numpy(noise.integers(o["classes"], size=n))
    task = Task("noise", model=build, loss=cross_entropy, clients=[(x, y)]).to(torch.float32, device)
    module = build_module(task, seed=seed, dtype=torch.float32).to(device)
    layout = Layout.of(module, task.clients[0][0][:2])
    work = LocalWork(make_optimizer("sgd", lr=0.01, momentum=0.9, weight_decay=1e-5), epochs=1, batch=o["batch"])
    return FlatModel(module, layout, task, work.optimizer), work, layout.read(module, torch.float32)
