"""OrthoFL, App. I: one gradient step from OrthoFL's start of a client, and from the baseline's.

At every arrival, with W_m(t) the client's weights, W(t) the global ones, and W_m(τ+) and W(τ+) those of its hand-out:

    Δ_m = W_m(t) − W_m(τ+),  Δ = W(t) − W(τ+),  D = W(τ+) − W_m(τ+),  u = Δ_m / ‖Δ_m‖,  Δα = ‖Δ_m‖
    Δ = α u + δ,  D = ρ u + d                       δ and d orthogonal to u
    S_orthofl  = W_m(t) + δ                         over the whole vector, as in App. I; `layer`: by layer, as in Eq. 6
    S_baseline = (1 − β_t) W(t) + β_t W_m(t)        FedAsync's; s = S − W_m(t)
    Δ_pre   = F_m(S_baseline) − F_m(S_orthofl)
    Δ_1step = F_m(S_baseline − η ∇F_m(S_baseline)) − F_m(S_orthofl − η ∇F_m(S_orthofl))

F_m is the loss in evaluation mode on all of the client's examples, or on some of them; η is the clients' rate. The
arrivals are those of an OrthoFL run, and of a FedAsync run, in which D = 0. Nothing in the runs is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.layout import Layout
from ...core.method import ServerView
from ...core.task import Examples
from ...core.tickets import Update
from ...parts.project import Projection, calibrate
from ...parts.staleness import polynomial
from ...runs.build import BuiltRun
from ...training.flat_model import FlatModel
from .series import line, short
from .study import Study, Tell, begin
from .watch import model_of, run_observed, some_of

__all__ = ["PAPER", "QUICK", "OneStep", "Parts", "decompose", "run"]

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
    "methods": {"orthofl": "orthofl", "fedasync": "fedasync"},
    "beta": 0.6,
    "a": 0.5,
    "every": 1,
    "examples": 1000,
}
QUICK: dict[str, Any] = {
    "settings": {"task": {"name": "digits", "model": "mlp"}, "updates": 150, "batch": 32, "lr": 0.05},
    "examples": 100,
}
_STARTS: tuple[Projection, ...] = ("full", "layer")
_BINS = 20  # places of the curves over virtual time


class Parts(NamedTuple):
    """The decomposition of App. I over all trained weights."""

    alpha: float
    rho: float
    own: float  # Δα = ‖Δ_m‖
    delta: Tensor  # δ
    d: Tensor


def decompose(update: Update, weights: Tensor, layout: Layout) -> Parts:
    """Return α, ρ, Δα, δ and d; if the client did not move, u is 0, and all of Δ and D is orthogonal to it."""
    params = layout.params
    own = params(update.delta)
    size = torch.linalg.vector_norm(own)
    u = own / size.clamp_min(torch.finfo(size.dtype).tiny)
    shift = params(weights) - params(update.ticket.anchor)
    gap = params(update.ticket.anchor) - params(update.ticket.sent)
    alpha, rho = torch.dot(shift, u), torch.dot(gap, u)
    return Parts(float(alpha), float(rho), float(size), shift - alpha * u, gap - rho * u)


class OneStep:
    """Rows of one number for each arrival; those of a start end in the name of the projection."""

    def __init__(self, made: BuiltRun, o: Mapping[str, Any]):
        self._model, self._task, self._layout = model_of(made), made.task, made.layout
        self._lr, self._beta, self._s = made.spec.lr, float(o["beta"]), polynomial(float(o["a"]))
        self._every, self._most = o["every"], o["examples"]
        self.rows: list[dict[str, float]] = []

    def __call__(self, update: Update, view: ServerView) -> None:
        if view.version % self._every:
            return
        examples = some_of(self._task.clients[update.ticket.client], self._most)
        parts, local = decompose(update, view.weights, self._layout), update.local
        beta_t = self._beta * self._s(update.staleness)
        baseline = torch.lerp(view.weights, local, beta_t)
        row = {"time": view.time, "alpha": parts.alpha, "rho": parts.rho, "own": parts.own}
        row |= {"delta": _norm(parts.delta), "d": _norm(parts.d), "s_baseline": self._gap(baseline, local)}
        before, after = self._losses(baseline, examples)
        for by in _STARTS:
            start = calibrate(update, view.weights, layout=self._layout, by=by)
            pre, one = self._losses(start, examples)
            row |= {f"s_{by}": self._gap(start, local), f"pre_{by}": before - pre, f"one_{by}": after - one}
        self.rows.append(row)

    def _gap(self, start: Tensor, local: Tensor) -> float:
        return _norm(self._layout.params(start) - self._layout.params(local))

    def _losses(self, start: Tensor, examples: Examples) -> tuple[float, float]:
        """Return F_m(S) and F_m(S − η ∇F_m(S))."""
        loss, gradient = loss_and_gradient(self._model, start, examples)
        moved = start.clone()
        self._layout.params(moved).add_(gradient, alpha=-self._lr)
        return loss, self._model.evaluate(moved, examples)["loss"]


def loss_and_gradient(model: FlatModel, weights: Tensor, examples: Examples, chunk: int = 500) -> tuple[float, Tensor]:
    """Return the mean loss on the examples and its gradient, both in evaluation mode."""
    model.load(weights)
    model.module.eval()
    total, gradient = 0.0, torch.zeros_like(model.trained)
    for x, y in zip(torch.split(examples[0], chunk), torch.split(examples[1], chunk), strict=True):
        share = len(x) / len(examples[0])
        g, loss = model.grad(model.layout.params(weights), (x, y))
        total, gradient = total + share * float(loss), gradient.add_(g, alpha=share)
    model.module.train()
    return total, gradient


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: full, layer (OrthoFL's start). Columns: the runs. Measures: share, one, pre and sizes of the vectors."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for name, choice in study.choices("methods").items():
        for seed in seeds:
            rows = _piece(study, seed, name, choice)
            for by in _STARTS:
                numbers.setdefault(by, {}).setdefault(name, {})[str(seed)] = _numbers(rows, by)
            if seed == seeds[0]:
                _draw_into(curves, name, rows)
    axes = {"x": "virtual time (s)", "y": "as the panel says"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": study.notes}


def _piece(study: Study, seed: int, name: str, choice: Any) -> list[dict[str, float]]:
    o, changes = study.options, {"method": choice}

    def make() -> list[dict[str, float]]:
        made = study.plan(seed, changes)
        see = OneStep(made, o)
        run_observed(made, see, tell=study.tell, what=f"{name}, seed {seed}")
        return see.rows

    inputs = [study.settings(changes), seed, *(o[k] for k in ("beta", "a", "every", "examples"))]
    rows: list[dict[str, float]] = study.piece(f"{name}-{seed}", inputs, make)
    return rows


def _numbers(rows: Sequence[Mapping[str, float]], by: str) -> dict[str, float]:
    """Return the share of the arrivals after which OrthoFL's start is better, and means of the sizes."""
    one, pre = [r[f"one_{by}"] for r in rows], [r[f"pre_{by}"] for r in rows]
    found = {
        "share": 100 * fmean(x > 0 for x in one),
        "share_pre": 100 * fmean(x > 0 for x in pre),
        "one": median(one),
        "pre": median(pre),
        "s": fmean(r[f"s_{by}"] for r in rows),
        "s_baseline": fmean(r["s_baseline"] for r in rows),
    }
    found |= {name: fmean(r[name] for r in rows) for name in ("alpha", "rho", "own", "delta", "d")}
    return {name: short(value) for name, value in found.items()}


def _draw_into(curves: dict[str, Any], name: str, rows: Sequence[Mapping[str, float]]) -> None:
    """Draw the share of better starts and the sizes over virtual time, as means of equal parts of the arrivals."""
    parts = [p for p in np.array_split(np.arange(len(rows)), min(_BINS, len(rows))) if len(p)]
    at = [fmean(rows[i]["time"] for i in p) for p in parts]

    def means(of: str, *, positive: bool = False) -> list[float]:
        return [fmean(100.0 * (rows[i][of] > 0) if positive else rows[i][of] for i in p) for p in parts]

    for by in _STARTS:
        curves.setdefault(f"better after one step (%), {name}", {})[by] = line(at, means(f"one_{by}", positive=True))
    for size in ("alpha", "rho", "delta", "d", "s_baseline"):
        curves.setdefault(f"sizes, {name}", {})[size] = line(at, means(size))
