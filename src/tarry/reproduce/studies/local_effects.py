"""FedSOL, Fig. 3, 6 and 7: what a round's local training does to the models it begins with.

Looked at in every `every`-th round, w_g the global that it begins with, w_k the models that clients end with:

    proximal    mean over k of KL(softmax(z_g/T) ‖ softmax(z_k/T)), T = 3, on client k's own examples     Fig. 3a
    cosine      of the direction that is descended and the proximal gradient, mean over all local steps   Fig. 3b
    distance    mean of ‖w_g − w_k‖                                                                       Fig. 6a
    divergence  mean of ‖w_j − w_k‖ over pairs                                                            Fig. 6b
    global      accuracy of w_g on the test set, per cent                                                 Fig. 7a
    local       accuracy of w_k there, mean and standard deviation over k                                 Fig. 7a
    classes     accuracy of w_g on every class; of numbers, the standard deviation over classes and the mean change of
                a class from one look to the next                                                         Fig. 7b

`measures` says which. `cosine` is what FedSOL notes of itself: over the perturbed part, and for ρ > 0 only; there ρ =
1e-9, below rounding, stands for plain training. Its first step of a visit counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from torch import Tensor

from ...core.errors import BadInput, near
from ...core.method import ServerView
from ...core.tickets import Update
from ...parts.proximal import KL
from ...runs.build import BuiltRun
from ...runs.personalize import PerClassTest
from .fedsol_setting import SETTINGS, SMALL
from .series import line, mean_of, short, thirds
from .study import Study, Tell, begin
from .watch import model_of, run_observed, some_of

__all__ = ["PAPER", "QUICK", "Rounds", "run"]

PAPER: dict[str, Any] = {
    "settings": SETTINGS,
    "stand_ins": [],
    "methods": {"fedavg": "fedavg", "fedsol": {"name": "fedsol", "rho": 2.0}},
    "measures": ["proximal", "distance", "divergence", "global", "local", "classes"],
    "every": 5,
    "examples": None,
    "own": 200,
    "temperature": 3.0,
}
QUICK: dict[str, Any] = {"settings": SMALL, "every": 2}
_MEASURES = ("proximal", "cosine", "distance", "divergence", "global", "local", "classes")


class Rounds:
    """Looks at rounds: `rows` holds a table of numbers (or a list of them) for each."""

    def __init__(self, made: BuiltRun, o: Mapping[str, Any]):
        assert made.task.test is not None
        self._task, self._bound, self._o = made.task, model_of(made), o
        self._test = some_of(made.task.test, o["examples"])
        self._exam = PerClassTest(made.task) if "classes" in o["measures"] else None
        self._kl = KL(o["temperature"])
        self._models: list[tuple[int, Tensor]] = []  # client, w_k
        self._cosines: list[float] = []
        self.rows: list[dict[str, Any]] = []

    def __call__(self, update: Update, view: ServerView) -> None:
        if view.version % self._o["every"]:
            return
        self._models.append((update.ticket.client, update.local))
        if view.notes is not None and "cosine_proximal" in view.notes:
            self._cosines.append(view.notes["cosine_proximal"])
        if view.in_flight == 0:
            self.rows.append({"round": view.version, **self.look(view.weights, self._models)})
            self._models, self._cosines = [], []

    def look(self, w_g: Tensor, models: Sequence[tuple[int, Tensor]]) -> dict[str, Any]:
        params, locals_ = self._bound.layout.params, [w for _, w in models]
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "proximal": lambda: _spread("proximal", [self.proximal(w_g, c, w) for c, w in models]),
            "cosine": lambda: {"cosine": fmean(self._cosines)} if self._cosines else {},
            "distance": lambda: _spread("distance", [float((params(w) - params(w_g)).norm()) for w in locals_]),
            "divergence": lambda: {"divergence": _mean_distance([params(w) for w in locals_])},
            "global": lambda: {"global": self.accuracy(w_g)},
            "local": lambda: _spread("local", [self.accuracy(w) for w in locals_]),
            "classes": lambda: {"classes": self.by_class(w_g)},
        }
        found: dict[str, Any] = {}
        for measure in self._o["measures"]:
            found |= measures[measure]()
        return found

    def proximal(self, w_g: Tensor, client: int, w: Tensor) -> float:
        x, _ = some_of(self._task.clients[client], self._o["own"])
        s = self._bound.outputs(w_g, x) / self._o["temperature"]
        log_p = s - s.logsumexp(-1, keepdim=True)
        return float(self._kl.divergence(self._bound.outputs(w, x), log_p).mean())

    def accuracy(self, w: Tensor) -> float:
        return 100 * self._bound.evaluate(w, self._test)["accuracy"]

    def by_class(self, w: Tensor) -> list[float]:
        assert self._exam is not None
        return [100 * a for a in self._exam.by_class(lambda x: self._bound.outputs(w, x)).values()]


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: fmean(values), f"{name}_sd": pstdev(values)}


def _mean_distance(models: Sequence[Tensor]) -> float:
    """The mean distance of two of them; of a single one 0."""
    pairs = [float((a - b).norm()) for a, b in combinations(models, 2)]
    return fmean(pairs) if pairs else 0.0


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: methods. Columns: early, late (thirds of the run). Measures: as given; for classes spread, swing."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    if unknown := [m for m in study.options["measures"] if m not in _MEASURES]:
        raise BadInput([f"[study_options] measures: there is no {m!r}.{near(m, _MEASURES)}" for m in unknown])
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for name, choice in study.choices("methods").items():
        tables = [_piece(study, seed, name, choice) for seed in seeds]
        series = [_series(rows) for rows in tables]
        for seed, table in zip(seeds, series, strict=True):
            for i, column in enumerate(("early", "late")):
                rounded = {m: short(thirds(y)[i]) for m, y in table.items() if not m.endswith("_sd") and m != "round"}
                numbers.setdefault(name, {}).setdefault(column, {})[str(seed)] = rounded
        _draw_into(curves, name, mean_of(series), tables[0])
    axes = {"x": "round", "y": "as the panel says"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": study.notes}


def _piece(study: Study, seed: int, name: str, choice: Any) -> list[dict[str, Any]]:
    o = study.options
    changes = {"method": choice} | ({"diagnose": True} if "cosine" in o["measures"] else {})

    def make() -> list[dict[str, Any]]:
        made = study.plan(seed, changes)
        look = Rounds(made, o)
        run_observed(made, look, tell=study.tell, what=f"{name}, seed {seed}")
        return look.rows

    inputs = [study.settings(changes), seed, o["measures"], o["every"], o["examples"], o["own"], o["temperature"]]
    rows: list[dict[str, Any]] = study.piece(f"{name}-{seed}", inputs, make)
    return rows


def _series(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers over rounds; of the classes how far they are apart, and how much they change."""
    table = {name: np.array([r[name] for r in rows]) for name in rows[0] if name != "classes"}
    if "classes" in rows[0]:
        table["spread"] = np.array([pstdev(r["classes"]) for r in rows])
        swings = [np.abs(np.subtract(b["classes"], a["classes"])).mean() for a, b in pairwise(rows)]
        table["swing"] = np.array([*swings[:1], *swings]) if swings else np.zeros(1)
    return table


def _draw_into(curves: dict[str, Any], name: str, table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    x = table["round"]
    for measure, y in table.items():
        if measure == "round" or measure.endswith("_sd"):
            continue
        curves.setdefault(measure, {})[name] = line(x, y, table.get(f"{measure}_sd"))
    if "classes" in rows[0]:
        by_class = list(zip(*(r["classes"] for r in rows), strict=True))
        own = [r["round"] for r in rows]
        curves[f"classes, {name}"] = {f"class {c}": line(own, y, points=40) for c, y in enumerate(by_class)}
