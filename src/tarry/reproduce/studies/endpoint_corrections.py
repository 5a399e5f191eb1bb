"""AsyncManifold, Fig. 1: what each delay correction makes of the same late updates.

    a run is recorded      FedAsync, and AsyncCurve without delay correction
    at every server round  Θ̂ = Θ^τ + δ̂ by every correction from the same (Θ^t, Θ_i, Θ^τ); its loss on the test set
    what is shown          losses smoothed over rounds (σ = 100, cut off at 2σ), then (x − best)/(worst − best) of the
                           corrections at every round, then the mean over the recorded algorithms

`sets` names the examples of the losses: test; train, those of all clients; validation, a part of each client's examples
that is held out of training for all sets alike. The columns of a set other than test begin with its name.

A correction's memory (DC-ASGD's mean square) runs over all updates of the recorded run. `share` = η looks at the server
step Θ^τ + η δ̂ in the endpoint's place. The paper names 8 clients with examples in proportion to their number, LeNet-5,
FEMNIST, and Adam's rates (Fig. 3); visits as long as there are examples, the batch and the number of rounds are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...config.components import Choice
from ...core.errors import BadInput
from ...core.method import Method, ServerView
from ...core.task import Examples
from ...core.tickets import Update
from ...methods import methods
from ...runs.build import BuiltRun
from .client_curves import held_out
from .series import Series, line, mean_of, relative, short, smooth, thirds
from .study import Study, Tell, begin
from .watch import loss_on, model_of, run_observed, some_of

__all__ = ["PAPER", "QUICK", "Sweep", "run", "sets_of", "summary"]

PAPER: dict[str, Any] = {
    "settings": {
        "task": {"name": "femnist", "model": "lenet5"},
        "clients": 8,
        "partition": "proportional",
        "delay": "bandwidth",
        "updates": 2000,
        "epochs": 5,
        "batch": 128,
        "optimizer": "adam",
        "lr": 1e-3,
    },
    "stand_ins": [{"name": "mnist", "model": "lenet5"}],
    "algorithms": {
        "fedasync": {"method": "fedasync"},
        "asynccurve": {"method": {"name": "asynccurve", "correction": "asgd"}},
    },
    "corrections": {
        "asgd": "asgd",
        "fedasync": "fedasync",
        "dc-asgd": {"name": "dc-asgd", "form": "adaptive", "lam": 5.0},  # 2.5 times the published 2
        "orthograd": "orthograd",
        "orthopos": "orthopos",
        "orthostrict": "orthostrict",
    },
    "share": 1.0,
    "every": 1,
    "examples": None,
    "sets": ["test"],
    "held_out": 0.1,
    "sigma": 100.0,
    "truncate": 2.0,
}
_SETS = ("train", "validation", "test")
QUICK: dict[str, Any] = {
    "settings": {"task": {"name": "mnist", "model": "lenet5", "limit": 1200}, "updates": 120, "epochs": 1},
    "stand_ins": [{"name": "digits", "model": "mlp"}],
    "every": 2,
    "examples": 400,
    "sigma": 10.0,
}


class Sweep:
    """Every correction's endpoint of every update: rows of [round, loss, loss, ...], of one set after the other."""

    def __init__(
        self,
        made: BuiltRun,
        corrections: Mapping[str, Method],
        sets: Sequence[Examples],
        *,
        share: float,
        every: int,
        most: int | None,
    ):
        self._parts = [m.correct if m.as_correction is None else m.as_correction for m in corrections.values()]
        self._states: list[Any] | None = None
        self._share, self._every = share, every
        bound = model_of(made)
        self._losses = [loss_on(bound, some_of(examples, most)) for examples in sets]
        self.rows: list[list[float]] = []

    def endpoints(self, update: Update, view: ServerView) -> list[Tensor]:
        """Θ^τ + share · δ̂ by each correction."""
        states = [p.init(view.weights) for p in self._parts] if self._states is None else self._states
        done = [part(update, state, view) for part, state in zip(self._parts, states, strict=True)]
        self._states = [state for _, state in done]
        return [torch.add(view.weights, view.displacement(new), alpha=self._share) for new, _ in done]

    def __call__(self, update: Update, view: ServerView) -> None:
        ends = self.endpoints(update, view)
        if view.version % self._every == 0:
            self.rows.append([view.version, *(loss(end) for loss in self._losses for end in ends)])


def sets_of(made: BuiltRun, names: Sequence[str], share: float, seed: int) -> tuple[BuiltRun, list[Examples]]:
    """Return the examples of each set, and the run; with a validation set, that is held out of its clients' data."""
    if unknown := [name for name in names if name not in _SETS]:
        raise BadInput(f"[study_options] sets: {unknown[0]!r} is not one of {', '.join(_SETS)}")
    assert made.task.test is not None
    known = {"test": made.task.test}
    if "validation" in names:
        task, parts = held_out(made.task, share, seed)
        made, known["validation"] = replace(made, task=task), _joined(parts)
    known["train"] = _joined(made.task.clients)
    return made, [known[name] for name in names]


def _joined(parts: Sequence[Examples]) -> Examples:
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: corrections. Columns: early, late (the first and the last third). Measures: relative, test_loss."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    o, names = study.options, list(study.choices("corrections"))
    pieces = {
        (seed, label): _piece(study, seed, label, changes)
        for seed in seeds
        for label, changes in study.choices("algorithms").items()
    }
    rounds = [row[0] for row in next(reversed(pieces.values()))]
    found: dict[str, Any] = {}
    for number, which in enumerate(o["sets"]):
        first = 1 + number * len(names)
        tables = {
            key: {name: np.array([r[first + i] for r in rows]) for i, name in enumerate(names)}
            for key, rows in pieces.items()
        }
        one = summary(study, tables, rounds, sigma=o["sigma"] / o["every"], truncate=o["truncate"])
        found = one if which == "test" and not found else _with_set(found, one, which)
    return found


def _with_set(found: dict[str, Any], one: dict[str, Any], which: str) -> dict[str, Any]:
    """Return the findings with those of another set, whose columns and panels have its name."""
    own = one["numbers"] if which == "test" else _prefixed(one["numbers"], which)
    before = found.get("numbers", {})
    numbers = {row: {**before.get(row, {}), **cells} for row, cells in own.items()}
    curves = {f"{panel}, {which}": lines for panel, lines in one["curves"].items()}
    axes = {**one["axes"], "y": "loss (relative: 0 the lowest, 1 the highest at that round)"}
    return {**one, "numbers": numbers, "curves": {**found.get("curves", {}), **curves}, "axes": axes}


def _prefixed(numbers: Mapping[str, Any], which: str) -> dict[str, Any]:
    return {row: {f"{which}-{column}": seeds for column, seeds in cells.items()} for row, cells in numbers.items()}


def _piece(study: Study, seed: int, label: str, changes: Mapping[str, Any]) -> list[list[float]]:
    o, chosen = study.options, {n: Choice.of(c) for n, c in study.choices("corrections").items()}

    def make() -> list[list[float]]:
        made, sets = sets_of(study.plan(seed, changes), o["sets"], o["held_out"], seed)
        parts = {name: methods.build(c.name, **c.params) for name, c in chosen.items()}
        sweep = Sweep(made, parts, sets, share=o["share"], every=o["every"], most=o["examples"])
        run_observed(made, sweep, tell=study.tell, what=f"{label}, seed {seed}")
        return sweep.rows

    inputs = [study.settings(changes), seed, study.choices("corrections"), o["share"], o["every"], o["examples"]]
    inputs += [] if o["sets"] == ["test"] else [o["sets"], o["held_out"]]
    rows: list[list[float]] = study.piece(f"{label}-{seed}", inputs, make)
    return rows


def summary(
    study: Study,
    tables: Mapping[tuple[int, str], Mapping[str, Series]],
    rounds: Sequence[float],
    *,
    sigma: float,
    truncate: float,
) -> dict[str, Any]:
    """Return numbers and curves from losses by (seed, algorithm) and name."""
    smoothed = {
        key: {name: smooth(values, sigma, truncate) for name, values in table.items()} for key, table in tables.items()
    }
    numbers: dict[str, Any] = {}
    for seed in study.seeds:
        mine = [table for (s, _), table in smoothed.items() if s == seed]
        shown, plain = mean_of([relative(table) for table in mine]), mean_of(mine)
        for name, values in shown.items():
            for column, r, loss in zip(("early", "late"), thirds(values), thirds(plain[name]), strict=True):
                found = {"relative": short(r), "test_loss": short(loss)}
                numbers.setdefault(name, {}).setdefault(column, {})[str(seed)] = found
    over_all = mean_of([relative(table) for table in smoothed.values()])
    panels = {"relative": {name: line(rounds, y) for name, y in over_all.items()}}
    for label in dict.fromkeys(label for _, label in smoothed):
        own = mean_of([table for (_, other), table in smoothed.items() if other == label])
        panels[f"loss, {label}"] = {name: line(rounds, y) for name, y in own.items()}
    axes = {"x": "server round", "y": "test loss (relative: 0 the lowest, 1 the highest at that round)"}
    return {"numbers": numbers, "curves": panels, "axes": axes, "notes": study.notes}
