"""OrthoFL, Sec. 5.6: a calibration beside a plain aggregation and a client's visit, and how it grows with the model.

    calibration    Eq. 3 and 5 to 7 of one update: what OrthoFL's server does
    aggregation    Eq. 3 alone: what FedAsync's does
    visit          E local epochs of plain SGD, from the time of a step; E · B steps

The text says O(P) for the first two. `growth` fits log(seconds) = c + growth · log(P) to vectors of noise of the given
sizes: 1 is proportional to P.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from ...core.layout import Block, Kind, Layout
from ...methods import methods
from ...training.determinism import deterministic
from .calibration import arrival, layout_of
from .latency import bench, visit_of
from .series import line, short
from .study import Study, Tell, begin
from .timing import machine, seconds

__all__ = ["PAPER", "QUICK", "growth", "noise_layout", "run"]

PAPER: dict[str, Any] = {
    "models": {
        "lenet5": {"shape": [1, 28, 28], "classes": 10, "examples": 6000},
        "resnet18-1d": {"shape": [9, 128], "classes": 6, "norm": "batch", "examples": 350},
        "vgg11": {"shape": [3, 32, 32], "classes": 10, "norm": "batch", "examples": 4000},
        "mobilenetv2": {"shape": [3, 32, 32], "classes": 100, "norm": "batch", "examples": 400},
    },
    "sizes": [100_000, 300_000, 1_000_000, 3_000_000, 10_000_000],
    "layers": 20,
    "epochs": 5,
    "batch": 128,
    "steps": 2,
    "repeats": 20,
}
QUICK: dict[str, Any] = {"sizes": [100_000, 300_000, 1_000_000], "steps": 1, "repeats": 3}
_SERVERS = {"calibration": "orthofl", "aggregation": "fedasync"}


def noise_layout(size: int, layers: int) -> Layout:
    """Return a layout of so many numbers in layers of about one length."""
    edges = np.linspace(0, size, layers + 1).astype(int).tolist()
    spans = pairwise(edges)
    return Layout(tuple(Block(f"layer{i}", a, b, (b - a,), Kind.PARAM) for i, (a, b) in enumerate(spans)))


def growth(sizes: Sequence[float], took: Sequence[float]) -> float:
    """Return the exponent of P in the time, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(took), 1)[0])


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: models, and noise. Columns: calibration, aggregation, visit. Measures: seconds, share, growth."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    o, where = study.options, machine(device)
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    with deterministic():
        for seed in seeds:
            for name, about in study.choices("models").items():
                work = partial(_measure_model, study, name, about, seed)
                took = study.piece(f"{name}-{seed}", [where, seed, o, name], work)
                for column, value in took.items():
                    found = {"seconds": short(value), "share": short(100 * value / took["visit"])}
                    numbers.setdefault(name, {}).setdefault(column, {})[str(seed)] = found
            sizes = [float(n) for n in o["sizes"]]
            by_size = study.piece(f"sizes-{seed}", [where, seed, o], partial(_measure_sizes, study, seed))
            for column, times in by_size.items():
                fit = {"growth": short(growth(sizes, times))}
                numbers.setdefault("noise", {}).setdefault(column, {})[str(seed)] = fit
                curves.setdefault("one update", {})[column] = line(sizes, times)
    axes = {"x": "trained parameters", "y": "seconds"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": [*study.notes, f"Measured on {where}."]}


def _servers(layout: Layout, seed: int, device: str) -> dict[str, Callable[[], object]]:
    update, now = arrival(layout, seed, device)

    def work(name: str) -> Callable[[], object]:
        method = methods.build(name)
        step, reply = method.step.init(now.weights), method.reply.init(now.weights)
        return lambda: (method.step(update, step, now), method.reply(update, reply, now))

    return {column: work(name) for column, name in _SERVERS.items()}


def _measure_model(study: Study, name: str, about: Mapping[str, Any], seed: int) -> dict[str, float]:
    o, options = study.options, dict(about)
    examples = options.pop("examples")
    took = seconds(_servers(layout_of(name, options), seed, study.device), o["repeats"], study.device)
    shape, classes = options.pop("shape"), options.pop("classes")
    model = {"model": {"name": name, **options}, "shape": shape, "classes": classes}
    bound, work, sent = bench({**model, "batch": o["batch"], "steps": o["steps"]}, seed, study.device)
    train = visit_of(methods.build("fedavg").local, bound, work, sent, seed)
    step = seconds({"step": train}, max(1, o["repeats"] // 5), study.device)["step"] / o["steps"]
    return {**took, "visit": step * o["epochs"] * ceil(examples / o["batch"])}


def _measure_sizes(study: Study, seed: int) -> dict[str, list[float]]:
    o = study.options
    layouts = [noise_layout(int(n), o["layers"]) for n in o["sizes"]]
    each = [seconds(_servers(layout, seed, study.device), o["repeats"], study.device) for layout in layouts]
    return {column: [took[column] for took in each] for column in _SERVERS}
