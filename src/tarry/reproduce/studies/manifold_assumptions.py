"""AsyncManifold, Assumptions 4 and 7, measured along a run.

    S    the drift ‖Θ^τ − Θ^t‖ of an update over the longest server step since its hand-out                 Assumption 4
    D    at the worst place λ: E‖γ(λ) − Θ^τ‖ / E‖γ̂(λ) − Θ^τ‖, γ the curve and γ̂ the line to the endpoint    Assumption 7

Assumption 4 is about expectations, given the weights at the hand-out; a run gives one sample of each, so that S is
shown as its largest and its mean value beside the largest staleness, which bounds it. D is taken for the endpoints of
trusted displacement and of trusted position, with the control point moved along and rotated (`control_corrections`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ...core.method import ServerView
from ...core.tickets import Update
from . import control_corrections
from .control_corrections import after_delay, along, places
from .series import line, short
from .study import Study, Tell, begin
from .watch import run_observed

__all__ = ["PAPER", "QUICK", "Assumptions", "run"]

PAPER: dict[str, Any] = {
    **{name: control_corrections.PAPER[name] for name in ("settings", "stand_ins", "points")},
    "algorithms": {"asynccurve": control_corrections.PAPER["algorithms"]["asynccurve"]},
}
QUICK: dict[str, Any] = {name: control_corrections.QUICK[name] for name in ("settings", "stand_ins", "points")}
_WAYS = {"gradient": "gradient-midpoint", "position": "position-rotated"}


class Assumptions:
    """Rows of numbers, one for each update that is stale; `lengths` are sums over updates by way and place."""

    def __init__(self, points: int):
        self._places = places(points)
        self._steps: list[float] = []  # the length of every server step so far
        self._before: Tensor | None = None
        self.rows: list[dict[str, float]] = []
        self.lengths = {way: [[0.0, 0.0] for _ in self._places] for way in _WAYS}

    def __call__(self, update: Update, view: ServerView) -> None:
        here, sent = view.layout.params(view.weights), view.layout.params(update.ticket.sent)
        if self._before is not None:
            self._steps.append(_length(here - self._before))
        self._before = here.clone()
        longest = max(self._steps[view.version - update.staleness : view.version], default=0.0)
        if update.staleness and longest:
            drift = _length(here - sent)
            self.rows.append({"round": view.version, "s": drift / longest, "staleness": update.staleness})
        ways = after_delay(update, view)
        for way, name in _WAYS.items():
            start, end, control = ways[name]
            for sums, t in zip(self.lengths[way], self._places, strict=True):
                sums[0] += _length(along(start, end, control, t) - start)
                sums[1] += _length(along(start, end, None, t) - start)

    def divergence(self, way: str) -> float:
        """Return D: the largest ratio over the places."""
        return max(curve / straight for curve, straight in self.lengths[way])


def _length(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: the recorded algorithms. One column, run. Measures: s_most, s_mean, staleness, d_gradient, d_position."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for label, changes in study.choices("algorithms").items():
        for seed in seeds:
            found = _piece(study, seed, label, changes)
            numbers.setdefault(label, {}).setdefault("run", {})[str(seed)] = found["numbers"]
            if seed == seeds[0]:
                curves.setdefault("drift over the longest step", {})[label] = found["s"]
    axes = {"x": "server round", "y": "S of an update"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": study.notes}


def _piece(study: Study, seed: int, label: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        look = Assumptions(study.options["points"])
        run_observed(study.plan(seed, changes), look, tell=study.tell, what=f"{label}, seed {seed}")
        rows = look.rows
        found = {
            "s_most": max((r["s"] for r in rows), default=0.0),
            "s_mean": fmean([r["s"] for r in rows] or [0.0]),
            "staleness": max((r["staleness"] for r in rows), default=0.0),
            **{f"d_{way}": look.divergence(way) for way in _WAYS},
        }
        of_rounds = line([r["round"] for r in rows], [r["s"] for r in rows]) if rows else {"x": [], "y": []}
        return {"numbers": {k: short(v) for k, v in found.items()}, "s": of_rounds}

    piece: dict[str, Any] = study.piece(
        f"{label}-{seed}", [study.settings(changes), seed, study.options["points"]], make
    )
    return piece
