"""AsyncManifold, Sec. 4: the manifold quality, Q = E[loss on the line] / E[loss on the curve].

    own        from Θ^t to Θ_i, with the control point as it was learned: no delay
    gradient   from Θ^τ to Θ^τ + (Θ_i − Θ^t), the control point moved along
    position   from Θ^τ to Θ_i, the control point rotated (Eq. 17)

Q of an update is the mean test loss on `points` places of the line over that on the same places of the curve; shown is
the mean over updates with half the width of its 99 % Gaussian interval (the paper: 1.0275 ± 0.0139). Updates of one run
are not independent, so the interval is too narrow, the paper's too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...core.method import ServerView
from ...core.tickets import CONTROL, Update
from . import control_corrections
from .control_corrections import after_delay, record
from .series import confidence, line, short
from .study import Tell, begin

__all__ = ["PAPER", "QUICK", "quality", "run", "with_own"]

PAPER: dict[str, Any] = {
    **{name: control_corrections.PAPER[name] for name in ("settings", "stand_ins", "points", "every", "examples")},
    "algorithms": {"asynccurve": control_corrections.PAPER["algorithms"]["asynccurve"]},
}
QUICK: dict[str, Any] = {
    name: control_corrections.QUICK[name] for name in ("settings", "stand_ins", "points", "examples")
}
#: way → the line and the curve that are compared
_PAIRS = {
    "own": ("own-linear", "own-learnt"),
    "gradient": ("gradient-linear", "gradient-midpoint"),
    "position": ("position-linear", "position-rotated"),
}


def with_own(update: Update, view: ServerView) -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
    """The ways that are compared."""
    late, params = after_delay(update, view), view.layout.params
    start, end = params(update.ticket.sent), params(update.local)
    own = {"own-linear": (start, end, None), "own-learnt": (start, end, update.extras[CONTROL])}
    used = {name for pair in _PAIRS.values() for name in pair}
    return {name: way for name, way in {**own, **late}.items() if name in used}


def quality(straight: Sequence[float], curved: Sequence[float]) -> list[float]:
    """Q of every update."""
    return [a / b for a, b in zip(straight, curved, strict=True)]


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: own, gradient, position. Columns: the recorded algorithms. Measures: Q, interval."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for label, changes in study.choices("algorithms").items():
        for seed in seeds:
            rows = record(study, seed, label, changes, with_own)
            for way, (straight, curved) in _PAIRS.items():
                q = quality(rows[straight], rows[curved])
                mean, half = confidence(q)
                found = {"Q": short(mean), "interval": short(half)}
                numbers.setdefault(way, {}).setdefault(label, {})[str(seed)] = found
                if seed == seeds[0]:
                    curves.setdefault(label, {})[way] = line(rows["round"], q)
    axes = {"x": "server round", "y": "Q"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": study.notes}
