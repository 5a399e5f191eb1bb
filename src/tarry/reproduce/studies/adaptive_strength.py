"""FedSOL, Fig. 5b: the layer-wise scaling factor λ after local training (ρ = 1.0, round 200).

    λ^(m)[i] = |w^(m)[i] − w_g^(m)[i]| / ‖w^(m) − w_g^(m)‖₂        Eq. 7, of layer m

    lambda   its mean over i and over the local models of the round
    scaled   the same times √n_m: 1 when all weights of the layer have moved alike
    moved    ‖w^(m) − w_g^(m)‖ / ‖w_g^(m)‖, the layer's deviation itself

A vector of unit length and n_m numbers has a mean of at most 1/√n_m: λ is large where a layer is small, whatever the
data. The last layers are small ones, so `lambda` alone does not show that they deviate more; the other two can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from ...core.layout import Layout
from ...core.method import ServerView
from ...core.tickets import Update
from .fedsol_setting import SETTINGS, SMALL
from .series import short
from .study import Study, Tell, begin
from .watch import run_observed

__all__ = ["PAPER", "QUICK", "run", "strengths"]

PAPER: dict[str, Any] = {
    "settings": {**SETTINGS, "rounds": 200, "method": {"name": "fedsol", "rho": 1.0, "part": "all"}},
    "stand_ins": [],
}
QUICK: dict[str, Any] = {"settings": SMALL}


def strengths(w: Tensor, w_g: Tensor, layout: Layout) -> dict[str, dict[str, float]]:
    """Return lambda, scaled and moved of every layer; 0 for a layer that did not change."""
    found = {}
    for b in layout.layers:
        d, n = (w[b.at] - w_g[b.at]).double(), b.stop - b.start
        size, own = float(d.norm()), float(w_g[b.at].double().norm())
        mean = float(d.abs().sum()) / n / size if size else 0.0
        found[b.name] = {"lambda": mean, "scaled": mean * n**0.5, "moved": size / own if own else 0.0}
    return found


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: layers. One column, clients (the mean over them). Measures: lambda, scaled, moved."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, Any] = {}
    for seed in seeds:
        for layer, found in _piece(study, seed).items():
            rounded = {name: short(value) for name, value in found.items()}
            numbers.setdefault(layer, {}).setdefault("clients", {})[str(seed)] = rounded
    order = list(range(1, 1 + len(numbers)))
    means = {
        measure: [fmean(s[measure] for s in row["clients"].values()) for row in numbers.values()]
        for measure in ("lambda", "scaled", "moved")
    }
    curves = {name: {"mean over clients": {"x": order, "y": [short(v) for v in y]}} for name, y in means.items()}
    axes = {"x": "layer, from the first to the last", "y": "as the panel says"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": study.notes}


def _piece(study: Study, seed: int) -> dict[str, dict[str, float]]:
    def make() -> dict[str, dict[str, float]]:
        made = study.plan(seed)
        last, seen = study.options["settings"]["rounds"] - 1, list[dict[str, dict[str, float]]]()

        def see(update: Update, view: ServerView) -> None:
            if view.version == last:
                seen.append(strengths(update.local, view.weights, view.layout))

        run_observed(made, see, tell=study.tell, what=f"seed {seed}")
        return {layer: {name: fmean(s[layer][name] for s in seen) for name in seen[0][layer]} for layer in seen[0]}

    found: dict[str, dict[str, float]] = study.piece(f"strength-{seed}", [study.settings(), seed], make)
    return found
