"""FedSOL, Table 5 and App. I: floating-point operations of a client's visit, and its memory, relative to FedAvg's.

Operations are counted by torch's FlopCounterMode in a whole visit of E epochs, which is trained by the library's loop
on noise: matrix products and convolutions, forward and backward. The proximal loss is the divergence of outputs, whose
received outputs are computed once for each example (the paper's δ). `memory` is the peak that PyTorch allocates on a
CUDA device; without one there is no such number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ...config.components import Choice
from ...methods import methods
from ...training.determinism import deterministic
from .latency import bench, visit_of
from .series import short
from .study import Tell, begin

__all__ = ["PAPER", "QUICK", "run"]

PAPER: dict[str, Any] = {
    "model": {"name": "cnn"},
    "shape": [3, 32, 32],
    "classes": 10,
    "batch": 50,
    "steps": 10,
    "epochs": 5,
    "methods": {
        "fedavg": "fedavg",
        "all": {"name": "fedsol", "part": "all"},
        "body": {"name": "fedsol", "part": "body"},
        "head": {"name": "fedsol", "part": "head"},
        "fedsam": "fedsam",
        "fedntd": "fedntd",
    },
}
QUICK: dict[str, Any] = {"steps": 2, "batch": 10}


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: methods. One column, visit. Measures: gflops, relative (to fedavg, or the first row), memory."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    o = study.options
    numbers: dict[str, Any] = {}
    for seed in seeds:
        with deterministic():
            inputs = [seed, device, {name: o[name] for name in PAPER}]
            found = study.piece(f"flops-{seed}", inputs, partial(_measure, o, seed, device))
        base = found.get("fedavg", next(iter(found.values())))
        for name, own in found.items():
            row = {"gflops": short(own["flops"] / 1e9), "relative": short(own["flops"] / base["flops"])}
            if own["bytes"]:
                row["memory"] = short(100 * (own["bytes"] / base["bytes"] - 1))
            numbers.setdefault(name, {}).setdefault("visit", {})[str(seed)] = row
    model = f"{Choice.of(o['model'])}, {'×'.join(map(str, o['shape']))}, batch {o['batch']}"
    return {"numbers": numbers, "notes": [*study.notes, f"A visit of {o['epochs']} epochs: {model}."]}


def _measure(o: Mapping[str, Any], seed: int, device: str) -> dict[str, dict[str, float]]:
    bound, work, sent = bench(o, seed, device)
    work = replace(work, epochs=o["epochs"])
    out = {}
    for name, choice in o["methods"].items():
        chosen = Choice.of(choice)
        if chosen.name == "none":
            continue
        visit = visit_of(methods.build(chosen.name, **chosen.params).local, bound, work, sent, seed)
        with FlopCounterMode(display=False) as counter:
            visit()
        out[name] = {"flops": float(counter.get_total_flops()), "bytes": _peak(visit, device)}
    return out


def _peak(visit: Any, device: str) -> float:
    """Return the most bytes that were allocated during a visit on a CUDA device; 0 elsewhere."""
    if device == "cpu":
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    visit()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())
