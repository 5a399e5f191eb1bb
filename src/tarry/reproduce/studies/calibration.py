"""OrthoFL, Table 3: seconds of a calibration. A measurement: numbers are this machine's.

What is timed is what the server does with one update, on vectors of noise with the models' layouts: the orthogonal
calibration (Eq. 5–7) and the moving average of the global weights (Eq. 3), both the method's own parts. DistilBERT is
not needed for its layout: LoRA of rank 8 on q_lin and v_lin of six layers, and a classifier of two maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core import rng
from ...core.layout import Block, Kind, Layout
from ...core.method import ServerView
from ...core.rng import Stream
from ...core.tickets import Ticket, Update
from ...methods import methods
from ...tasks.models import model_for
from ...training.determinism import deterministic
from .series import short
from .study import Study, Tell, begin
from .timing import machine, seconds

__all__ = ["PAPER", "QUICK", "arrival", "distilbert_lora", "layout_of", "run"]

PAPER: dict[str, Any] = {
    "models": {
        "lenet5": {"shape": [1, 28, 28], "classes": 10},
        "resnet18-1d": {"shape": [9, 128], "classes": 6},
        "distilbert-lora": {"classes": 20},
        "vgg11": {"shape": [3, 32, 32], "classes": 10},
        "mobilenetv2": {"shape": [3, 32, 32], "classes": 100},
    },
    "method_options": {},
    "repeats": 100,
}
QUICK: dict[str, Any] = {"repeats": 5}


def distilbert_lora(classes: int, *, rank: int = 8, width: int = 768, layers: int = 6) -> Layout:
    """Return the layout of the trained part of DistilBERT in OrthoFL: 753K numbers for 20 classes."""
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for i in range(layers):
        for name in ("q_lin", "v_lin"):
            at = f"distilbert.transformer.layer.{i}.attention.{name}"
            shapes += [(f"{at}.lora_A", (rank, width)), (f"{at}.lora_B", (width, rank))]
    shapes += [("pre_classifier.weight", (width, width)), ("pre_classifier.bias", (width,))]
    shapes += [("classifier.weight", (classes, width)), ("classifier.bias", (classes,))]
    blocks, start = list[Block](), 0
    for name, shape in shapes:
        stop = start + int(torch.Size(shape).numel())
        blocks.append(Block(name, start, stop, shape, Kind.HEAD if name.startswith("classifier") else Kind.PARAM))
        start = stop
    return Layout(tuple(blocks))


def layout_of(name: str, about: Mapping[str, Any]) -> Layout:
    """Return the layout of a model by its name, and the shape and classes of its data; the rest are the model's."""
    options = dict(about)
    classes = options.pop("classes")
    if name == "distilbert-lora":
        return distilbert_lora(classes, **options)
    return Layout.of(model_for(name, options.pop("shape"), classes, **options)())


def arrival(layout: Layout, seed: int, device: str) -> tuple[Update, ServerView]:
    """An update of noise that comes three steps late."""
    noise = rng.generator(rng.key(seed, Stream.DATA, 4))

    def vector() -> Tensor:
        return torch.from_numpy(noise.standard_normal(layout.size, dtype="float32")).to(device)

    ticket = Ticket(0, 0, 0, 0, 0.0, sent=vector(), anchor=vector())
    update = Update(ticket, vector(), 100, 10, staleness=3)
    return update, ServerView(vector(), layout, 3, 10.0, in_flight=1, n_clients=2, stream=0, decision=0)


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: models. One column, server. Measures: seconds, params (how many are trained)."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    layouts = {name: layout_of(name, about) for name, about in study.choices("models").items()}
    with deterministic():
        return _summary(study, layouts, machine(device))


def _summary(study: Study, layouts: Mapping[str, Layout], where: str) -> dict[str, Any]:
    o, device = study.options, study.device
    numbers: dict[str, Any] = {name: {"server": {}} for name in layouts}

    def measured(seed: int) -> dict[str, float]:
        work = {name: _work(layout, o["method_options"], seed, device) for name, layout in layouts.items()}
        return seconds(work, o["repeats"], device)

    for seed in study.seeds:
        took = study.piece(f"calibration-{seed}", [where, seed, o], partial(measured, seed))
        for name, value in took.items():
            numbers[name]["server"][str(seed)] = {"seconds": short(value), "params": layouts[name].n_params}
    return {"numbers": numbers, "notes": [*study.notes, f"Measured on {where}; median of {o['repeats']}."]}


def _work(layout: Layout, options: Mapping[str, Any], seed: int, device: str) -> Callable[[], object]:
    method, (update, now) = methods.build("orthofl", **options), arrival(layout, seed, device)
    states = method.reply.init(now.weights), method.step.init(now.weights)
    return lambda: (method.step(update, states[1], now), method.reply(update, states[0], now))
