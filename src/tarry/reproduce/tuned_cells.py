"""Tuned settings in a table: `tuned = { mnist = "tuned/mnist.toml" }` names the file of `tarry tune` for a column.

A row whose method is in the file gets its tuned settings there, unless the cell has its own; the deviations name the
file. A row with other parameters is another method: tune it as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.components import CROSSES
from ..config.spec import Spec
from ..core.errors import BadInput
from ..runs.tuning.tuned_file import TunedSettings, read_tuned
from .experiment import Experiment, SizedSettings, merge_layers

__all__ = ["with_tuned_cells"]


def with_tuned_cells(experiment: Experiment, files: Mapping[str, Any]) -> tuple[Experiment, list[str]]:
    """Return the experiment with the tuned settings of its columns, and the problems of the files."""
    problems = list[str]()
    for column, name in files.items():
        try:
            if column not in experiment.columns or not isinstance(name, str):
                raise BadInput("wants a column and the name of a file")
            tuned = read_tuned(experiment.path.parent / name)
            if both := sorted(set(range(experiment.seeds)) & set(tuned.seeds)):
                raise BadInput(f"{name} was tuned with the seed {both[0]}, which the table uses too")
            experiment = _with_column(experiment, column, name, tuned)
        except BadInput as e:
            problems += [f"tuned.{column}: {problem}" for problem in e.problems]
    return experiment, problems


def _with_column(experiment: Experiment, column: str, name: str, tuned: TunedSettings) -> Experiment:
    cells = dict(experiment.cells)
    points = {method.label: method.tuned for method in tuned.methods if method.tuned is not None}
    for row, there in experiment.grid():
        if there == column and (point := points.get(_label(experiment.cell(row, column, "full").settings))) is not None:
            own = cells.get((row, column), SizedSettings())
            cells[row, column] = replace(own, full=merge_layers(_layer(point), own.full))
    about = f"{experiment.columns[column].title}: {tuned.note()} ({Path(name).name})"
    return replace(experiment, cells=cells, deviations=(*experiment.deviations, about))


def _label(settings: Mapping[str, Any]) -> str:
    """Return the label of the method of a cell."""
    return Spec.of({name: settings[name] for name in ("method", *CROSSES) if name in settings}).label


def _layer(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as a layer of settings: method.mu is a parameter in a table without a name."""
    layer: dict[str, Any] = {}
    for name, value in point.items():
        group, dot, parameter = name.partition(".")
        if dot:
            layer.setdefault(group, {})[parameter] = value
        else:
            layer[name] = value
    return layer
