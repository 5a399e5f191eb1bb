"""AsyncManifold, Fig. 2: the learned curve on a plane of the loss, after 10 and 250 epochs of local training.

    Θ        the global of a federated run
    Θ_i, φ   what a client makes of it: an endpoint and a control point (parts.curve), in so many epochs
    plane    through Θ, Θ_i and φ: x along Θ_i − Θ, y along what of φ − Θ is orthogonal to it

The loss is taken on the client's own training examples and on the test set. The paper's claim is about equal distances
from Θ: `lower` is the share of places on the curve (nearer to Θ than Θ_i is) whose loss is below that of the line's
point at the same distance; `line` and `curve` are mean losses over equally spaced parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...config.components import Choice
from ...core.errors import BadInput
from ...core.tickets import CONTROL, VisitJob
from ...methods import methods
from ...runs.build import BuiltRun
from ...training.determinism import deterministic
from ...training.visit import train
from . import endpoint_corrections
from .canvas import panels
from .control_corrections import along, places
from .series import short
from .study import Study, Tell, begin
from .surface import grid
from .watch import loss_on, model_of, run_observed, some_of

__all__ = ["PAPER", "QUICK", "Arc", "draw", "run"]

PAPER: dict[str, Any] = {
    "settings": {**endpoint_corrections.PAPER["settings"], "method": "fedasync", "updates": 400},
    "stand_ins": endpoint_corrections.PAPER["stand_ins"],
    "curve": "asynccurve",
    "client": 3,
    "epochs": [10, 250],
    "examples": 2000,
    "points": 25,
    "places": 50,
}
QUICK: dict[str, Any] = {
    "settings": {**endpoint_corrections.QUICK["settings"], "updates": 60},
    "stand_ins": endpoint_corrections.QUICK["stand_ins"],
    "epochs": [2, 20],
    "examples": 300,
    "points": 11,
    "places": 20,
}
_MARGIN = 0.3  # of the way, on each side of what is drawn


class Arc(NamedTuple):
    """A way from Θ to Θ_i, all vectors whole; the bend over the trained weights."""

    start: Tensor
    end: Tensor
    transform_grad: Tensor

    def at(self, t: float, *, curved: bool) -> Tensor:
        n = len(self.transform_grad)
        there = along(self.start[:n], self.end[:n], self.transform_grad if curved else None, t)
        return torch.cat([there, torch.lerp(self.start[n:], self.end[n:], t)])


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: local epochs. Columns: train (the client's own), test. Measures: line, curve, Q (their ratio), lower."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, Any] = {}
    surfaces: dict[str, Any] = {}
    for seed in seeds:
        found = _piece(study, seed)
        for epochs, by_data in found.items():
            for data, one in by_data.items():
                surface = one.pop("surface")
                numbers.setdefault(epochs, {}).setdefault(data, {})[str(seed)] = one
                if seed == seeds[0]:
                    surfaces[f"{epochs} epochs, {data}"] = surface
    curves = {name: s["losses"] for name, s in surfaces.items()}
    axes = {"x": "distance from the global model", "y": "loss"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "surfaces": surfaces, "notes": study.notes}


def _piece(study: Study, seed: int) -> dict[str, Any]:
    o = study.options

    def make() -> dict[str, Any]:
        made = study.plan(seed)
        result = run_observed(made, tell=study.tell, what=f"federation, seed {seed}")
        assert result.weights is not None
        with deterministic():
            return {str(e): _analyze(study, made, _arc(study, made, result.weights, e, seed)) for e in o["epochs"]}

    cache_options = ("curve", "client", "epochs", "examples", "points", "places")
    found: dict[str, Any] = study.piece(
        f"landscape-{seed}", [study.settings(), seed, [o[k] for k in cache_options]], make
    )
    return found


def _arc(study: Study, made: BuiltRun, weights: Tensor, epochs: int, seed: int) -> Arc:
    """Return the arc from the global weights to the client's after so many epochs."""
    choice, client = Choice.of(study.options["curve"]), study.options["client"]
    if not 0 <= client < len(made.task.clients):
        raise BadInput(f"[study_options] client {client}: there are clients 0 to {len(made.task.clients) - 1}")
    rule, work = methods.build(choice.name, **choice.params).local, replace(made.work, epochs=epochs, steps=None)
    study.tell(f"client {client}: {epochs} epochs")
    trained = train(VisitJob(0, client, 0, weights), model_of(made), rule=rule, work=work, seed=seed)
    if CONTROL not in trained.extras:
        raise BadInput(f"[study_options] curve {choice}: its clients learn no control point; use asynccurve")
    return Arc(weights, weights + trained.delta, trained.extras[CONTROL])


def _analyze(study: Study, made: BuiltRun, arc: Arc) -> dict[str, Any]:
    o, bound = study.options, model_of(made)
    assert made.task.test is not None
    data = {"train": made.task.clients[o["client"]], "test": made.task.test}
    return {name: _compare(arc, loss_on(bound, some_of(own, o["examples"])), o) for name, own in data.items()}


def _compare(arc: Arc, loss: Callable[[Tensor], float], o: Mapping[str, Any]) -> dict[str, Any]:
    ts, n = places(o["places"]), len(arc.transform_grad)
    way = (arc.end - arc.start)[:n]
    length, far = float(way.norm()), [float((arc.at(t, curved=True) - arc.start)[:n].norm()) for t in ts]
    curved, straight = ([loss(arc.at(t, curved=c)) for t in ts] for c in (True, False))
    near = [(d, here) for d, here in zip(far, curved, strict=True) if d <= length]
    below = [here < loss(arc.at(d / length, curved=False)) for d, here in near]
    found = {"line": fmean(straight), "curve": fmean(curved), "Q": fmean(straight) / fmean(curved)}
    found["lower"] = fmean(below) if below else 0.0
    losses = {
        "line": {"x": [short(t * length) for t in ts], "y": [short(v) for v in straight]},
        "curve": {"x": [short(d) for d in far], "y": [short(v) for v in curved]},
    }
    return {**{k: short(v) for k, v in found.items()}, "surface": {**_plane(arc, way, loss, o), "losses": losses}}


def _plane(arc: Arc, way: Tensor, loss: Callable[[Tensor], float], o: Mapping[str, Any]) -> dict[str, Any]:
    """The losses on the plane, and the curve on it."""
    u = way / way.norm()
    normal = arc.transform_grad - torch.dot(arc.transform_grad, u) * u
    v = normal / normal.norm().clamp_min(torch.finfo(normal.dtype).tiny)
    length, height = float(way.norm()), float(torch.dot(arc.transform_grad, v))
    xs = np.linspace(-_MARGIN * length, (1 + _MARGIN) * length, o["points"])
    ys = np.linspace(-_MARGIN * length, max(height / 2, _MARGIN * length) + _MARGIN * length, o["points"])
    offsets = [(arc.at(t, curved=True) - arc.start)[: len(u)] for t in np.linspace(0, 1, 21).tolist()]
    path = {"x": [short(float(d @ u)) for d in offsets], "y": [short(float(d @ v)) for d in offsets]}
    z = grid(loss, arc.start, u, v, xs.tolist(), ys.tolist())
    return {"x": [short(x) for x in xs], "y": [short(y) for y in ys], "z": z, "path": path, "length": short(length)}


def draw(result: Mapping[str, Any], path: Path) -> None:
    """The planes: the line dashed, the curve drawn, Θ a dot and Θ_i a cross."""
    surfaces = result["surfaces"]
    with panels(path, -(-len(surfaces) // 2), 2) as axes:
        for ax, (name, s) in zip(axes.flat, surfaces.items(), strict=False):
            z = np.log(np.clip(s["z"], 1e-8, inf))
            drawn = ax.contourf(s["x"], s["y"], z, levels=20, cmap="viridis")
            ax.figure.colorbar(drawn, ax=ax, label="log loss")
            ax.plot([0, s["length"]], [0, 0], "w--", linewidth=1)
            ax.plot(s["path"]["x"], s["path"]["y"], "w-")
            ax.plot(0, 0, "wo")
            ax.plot(s["length"], 0, "wx")
            ax.set(title=name, xlabel="from global (dot) to client (cross)", ylabel="towards the control point")
