"""AsyncManifold, Fig. 3: what becomes of a learned curve when the line it was learned on has moved.

A client learned φ, the control point of a curve from Θ^t to Θ_i, d = φ − (Θ^t + Θ_i)/2. The server's way begins at Θ^τ,
G = Θ^τ − Θ^t, and ends at

    gradient   Θ̂ = Θ^τ + (Θ_i − Θ^t)          the displacement is trusted
    position   Θ̂ = Θ_i                        the position is trusted

The new control point, as its displacement from the new midpoint (Θ^τ + Θ̂)/2:

    linear     0                              no curve
    kept       φ stays where it is            d − G (gradient), d − G/2 (position)
    moved      φ + G                          d             ,   d + G/2
    midpoint   d as it was
    rotated    R d                            Eq. 17, R: Θ_i − Θ^t onto Θ̂ − Θ^τ

For the gradient endpoint the last three are the same, so `midpoint` stands for them. The loss of a way is the mean over
`points` places on it (the middles of equal parts of [0, 1]). Losses are smoothed and made relative, over all ways of
both endpoints together, as in Fig. 1 (`endpoint_corrections`). The text names gradient, position and rotation; the
figure's other lines are our reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.method import ServerView
from ...core.tickets import CONTROL, Update
from ...parts.manifold import rotate
from ...runs.build import BuiltRun
from . import endpoint_corrections
from .endpoint_corrections import summary
from .study import Study, Tell, begin
from .watch import loss_on, model_of, run_observed, some_of

__all__ = ["PAPER", "QUICK", "Ways", "after_delay", "along", "places", "record", "run"]

_CURVE = {"name": "asynccurve", "correction": "asgd"}
PAPER: dict[str, Any] = {
    "settings": endpoint_corrections.PAPER["settings"],
    "stand_ins": endpoint_corrections.PAPER["stand_ins"],
    "algorithms": {
        "fedasync": {"method": "fedasync", "local": _CURVE},
        "asynccurve": {"method": _CURVE},
    },
    "points": 5,
    "every": 5,
    "examples": None,
    "sigma": 100.0,
    "truncate": 2.0,
}
QUICK: dict[str, Any] = {
    "settings": endpoint_corrections.QUICK["settings"],
    "stand_ins": endpoint_corrections.QUICK["stand_ins"],
    "points": 2,
    "examples": 200,
    "sigma": 20.0,
}

#: name → (start, end, the control point's displacement from their midpoint or None: a line), over the trained weights
Ways = Callable[[Update, ServerView], dict[str, tuple[Tensor, Tensor, Tensor | None]]]


def after_delay(update: Update, view: ServerView) -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
    """The ways of Fig. 3."""
    params = view.layout.params
    sent, delta, here = params(update.ticket.sent), params(update.delta), params(view.weights)
    d, drift = update.extras[CONTROL], here - sent
    far, there = here + delta, sent + delta
    return {
        "gradient-linear": (here, far, None),
        "gradient-kept": (here, far, d - drift),
        "gradient-midpoint": (here, far, d),
        "position-linear": (here, there, None),
        "position-kept": (here, there, d - drift / 2),
        "position-moved": (here, there, d + drift / 2),
        "position-midpoint": (here, there, d),
        "position-rotated": (here, there, rotate(d, delta, there - here)),
    }


def places(points: int) -> list[float]:
    """The middles of so many equal parts of [0, 1]."""
    return [(i + 0.5) / points for i in range(points)]


def along(start: Tensor, end: Tensor, control: Tensor | None, t: float) -> Tensor:
    """(1−t)² start + 2t(1−t) φ + t² end, φ = (start + end)/2 + control."""
    straight = torch.lerp(start, end, t)
    return straight if control is None else torch.add(straight, control, alpha=2 * t * (1 - t))


def record(study: Study, seed: int, label: str, changes: Mapping[str, Any], ways: Ways) -> dict[str, list[float]]:
    """The mean loss of every way of every `every`-th update, and `round`."""
    o = study.options

    def make() -> dict[str, list[float]]:
        made, rows = study.plan(seed, changes), dict[str, list[float]]()
        loss = _loss(made, o["examples"])

        def see(update: Update, view: ServerView) -> None:
            if view.version % o["every"]:
                return
            rows.setdefault("round", []).append(view.version)
            stats = view.weights[view.layout.n_params :]
            for name, way in ways(update, view).items():
                at = [torch.cat([along(*way, t), stats]) for t in places(o["points"])]
                rows.setdefault(name, []).append(float(np.mean([loss(w) for w in at])))

        run_observed(made, see, tell=study.tell, what=f"{label}, seed {seed}")
        return rows

    inputs = [study.settings(changes), seed, ways.__name__, o["points"], o["every"], o["examples"]]
    rows: dict[str, list[float]] = study.piece(f"{label}-{seed}", inputs, make)
    return rows


def _loss(made: BuiltRun, most: int | None) -> Callable[[Tensor], float]:
    assert made.task.test is not None
    return loss_on(model_of(made), some_of(made.task.test, most))


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: endpoint-control, as above. Columns: early, late (thirds of the run). Measures: relative, test_loss."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    o, tables, rounds = study.options, {}, list[float]()
    for seed in seeds:
        for label, changes in study.choices("algorithms").items():
            rows = record(study, seed, label, changes, after_delay)
            rounds = rows.pop("round")
            tables[seed, label] = {name: np.array(values) for name, values in rows.items()}
    return summary(study, tables, rounds, sigma=o["sigma"] / o["every"], truncate=o["truncate"])
