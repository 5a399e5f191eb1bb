"""Fed-OGD, Fig. 6(c) and (f): how long the projected component of clients' gradients is, over epochs.

At every local step ⟨g, b⟩/‖b‖ is the signed length of the projection of the gradient g onto the base b that the client
was sent; it is negative in a conflict. A visit's value is the mean over its steps, an epoch's the mean over the visits
that end in it. The paper: the larger it is, the smaller the difference between the groups' directions.

    component    the signed length, before anything is removed
    conflicts    the share of steps at which it is negative

Visits without a base (of the first epoch, or while the other group is empty) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor

from ...core.errors import BadInput
from ...core.events import Event
from ...core.local_rule import ClientModel, Context, VisitOutput
from ...core.task import Examples
from ...methods.fedogd.conflicts import CountConflicts, GradientRecorder
from ...runs.build import BuiltRun
from .series import line, short
from .study import Study, Tell, begin
from .watch import run_observed

__all__ = ["PAPER", "QUICK", "MeasureComponent", "run"]

PAPER: dict[str, Any] = {
    "settings": {
        "task": {"name": "cifar10", "model": "resnet18"},
        "partition": {"name": "main-class", "main": 1, "share": 0.95},
        "delay": {"name": "fedogd-l2", "r": 1.0},
        "clients": 50,
        "time": 300.0,
        "epochs": 1,
        "batch": 50,
        "lr": 0.01,
    },
    "stand_ins": [],
    "columns": {"cifar10": {}},
    "methods": {
        "fedogd": {"name": "fedogd", "epoch": 1.0, "eta": 0.5},
        "traditional": {"name": "fedogd", "epoch": 1.0, "eta": 0.5, "projection": "always"},
        "no-cache": {"name": "fedogd", "epoch": 1.0, "eta": 0.5, "cache": False},
    },
}
QUICK: dict[str, Any] = {
    "settings": {"task": {"name": "digits", "model": "mlp"}, "clients": 10, "time": 30.0, "batch": 10, "lr": 0.1},
}


@dataclass(frozen=True)
class MeasureComponent(CountConflicts):
    """The rule inside; the sums of ⟨g, b⟩/‖b‖ and of conflicts over a visit are its notes."""

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:
        return self.rule.init(w, context, model), torch.zeros(2, dtype=w.dtype, device=w.device)

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        own, sums = state
        recorder = GradientRecorder(model)
        w, own, loss = self.rule.step(w, batch, context, own, cast(ClientModel, recorder))
        along = torch.dot(recorder.g, context["b"])
        return w, (own, sums + torch.stack([along, (along < 0).to(along.dtype)])), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        own, sums = state
        known = context["b"].any().to(sums.dtype)
        means = sums / context["n_steps"]
        out = self.rule.finish(w, context, own)
        return out._replace(notes={"component": means[0], "conflicts": means[1], "known": known})


class ComponentRecorder:
    """[epoch, component, conflicts] of every visit with a base; epochs are whole units of virtual time."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    def __call__(self, event: Event) -> None:
        if event.kind == "arrival" and event.notes and event.notes.get("known"):
            self.rows.append([event.time, event.notes["component"], event.notes["conflicts"]])


def measured(made: BuiltRun) -> BuiltRun:
    """Return the run with a rule that measures; nothing else of it changes."""
    rule = made.method.local
    if not isinstance(rule, CountConflicts):
        raise BadInput("[study_options] methods: wants Fed-OGD with a projection onto one base")
    return replace(made, method=replace(made.method, local=MeasureComponent(rule.rule)))


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: methods. Columns: data sets. Measures: component, conflicts; means over the last third of the time."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for column, changes in study.options["columns"].items():
        for name, choice in study.choices("methods").items():
            for seed in seeds:
                rows = _piece(study, seed, f"{name}-{column}", {**changes, "method": choice, "diagnose": True})
                late = [r for r in rows if r[0] >= rows[-1][0] * 2 / 3]
                found = {"component": short(fmean(r[1] for r in late)), "conflicts": 100 * fmean(r[2] for r in late)}
                numbers.setdefault(name, {}).setdefault(column, {})[str(seed)] = found
                if seed == seeds[0]:
                    by_epoch: dict[float, list[float]] = {}
                    for time, component, _ in rows:
                        by_epoch.setdefault(time, []).append(component)
                    means = [fmean(values) for values in by_epoch.values()]
                    curves.setdefault(column, {})[name] = line(list(by_epoch), means)
    axes = {"x": "epoch", "y": "projected component"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": study.notes}


def _piece(study: Study, seed: int, name: str, changes: Mapping[str, Any]) -> list[list[float]]:
    def make() -> list[list[float]]:
        record = ComponentRecorder()
        made = measured(study.plan(seed, changes))
        run_observed(made, callbacks=[record], tell=study.tell, what=f"{name}, seed {seed}")
        return record.rows

    rows: list[list[float]] = study.piece(f"{name}-{seed}", [study.settings(changes), seed], make)
    if not rows:
        raise BadInput("[study_options] settings: no client was sent a base; give more time")
    return rows
