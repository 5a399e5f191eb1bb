"""The result of a run, of a simulation or a federation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from ..config.spec import Spec
from ..core.errors import BadInput
from ..core.metric import ACCURACY, LOSS, CurvePoint, Scores
from ..core.server import Server
from ..engine.early_stopping import EarlyStopping
from ..record.result import Result, sha256, staleness_summary
from ..record.run_folder import RunFolder
from ..training.flat_model import build_module
from ..version import __version__
from .build import BuiltRun
from .build_task import build_task, dtype_of
from .stored_spec import errors_of_stored_settings
from .task_metrics import majority_accuracy

__all__ = ["Counters", "FolderModel", "SpecModel", "make_result"]

#: the settings that decide what the model is and what its first weights are
_OF_MODEL = ("task", "partition", "clients", "min_samples", "seed", "dtype")


@dataclass(frozen=True)
class SpecModel:
    """Builder of the model of a spec, with its first weights."""

    spec: Spec

    def __call__(self) -> nn.Module:
        spec = replace(self.spec, device="cpu")
        return build_module(build_task(spec), seed=spec.seed, dtype=dtype_of(spec))

    def to_toml(self) -> str:
        return self.spec.to_toml()


@dataclass(frozen=True)
class FolderModel:
    """Builder of the model of the run in a folder, with its first weights."""

    folder: Path
    objects: Mapping[str, Any] = field(default_factory=dict)  # settings that are Python objects, where they are known

    def __call__(self) -> nn.Module:
        wanted = [name for name in RunFolder(self.folder).meta().objects if name in ("task", "partition")]
        if missing := [name for name in wanted if name not in self.objects]:
            raise BadInput(
                f"{self.folder}: this run was given a Python object as {missing[0]}, which is not in the folder; load"
                " state_dict() into a model of your own"
            )
        folder = RunFolder(self.folder)
        before = {name: value for name, value in folder.written_settings().items() if name in _OF_MODEL}
        mine = {name: value for name, value in self.objects.items() if name in _OF_MODEL}
        with errors_of_stored_settings(folder.spec, mine):
            return SpecModel(Spec.of({**before, **mine}))()

    def to_toml(self) -> str:
        return RunFolder(self.folder).spec_text()


class Counters(Protocol):
    """Counters of a simulator or a federation during a run."""

    time: float
    updates: int
    lost: int
    rejected: int
    bytes_up: int
    bytes_down: int
    staleness: Counter[int]
    curve: list[CurvePoint]
    server: Server
    stop_reason: str
    early_stopping: EarlyStopping | None

    @property
    def result_weights(self) -> Tensor: ...


def _stopping(rule: EarlyStopping, reason: str) -> dict[str, Any]:
    assert rule.best is not None, "a run with --patience is evaluated at its end"
    best = {"best_time": rule.best.time, "best_updates": rule.best.updates}
    return {"patience": rule.patience, "stop_reason": reason, **best}


def make_result(built: BuiltRun, counters: Counters, *, test: Scores | None = None, **more: Any) -> Result:
    """Return the result so far; `more` are the fields that only the caller knows: wall_s, warnings, out ...

    `test`: the metrics on the test set, where the curve is on a validation set and the run is over.
    """
    server, spec = counters.server, built.spec
    rule, weights = counters.early_stopping, counters.result_weights
    last = counters.curve[-1] if counters.curve else None
    if rule is not None and rule.best is not None:
        last = rule.best
    final = last if test is None else CurvePoint.of(0.0, 0, test, "")
    return Result(
        method=built.method.name,
        label=spec.label,
        task=built.task.name,
        seed=spec.seed,
        n_clients=server.n_clients,
        virtual_time=counters.time,
        updates=counters.updates,
        rounds=server.version,
        final_accuracy=None if final is None else final.accuracy,
        final_loss=None if final is None else final.loss,
        curve=[point for point in counters.curve if point.metrics],
        staleness=staleness_summary(counters.staleness),
        lost=counters.lost,
        rejected=counters.rejected,
        weights_sha256=sha256(weights),
        bytes_up=counters.bytes_up,
        bytes_down=counters.bytes_down,
        peak_server_bytes=server.meter.peak,
        version=__version__,
        majority_accuracy=majority_accuracy(built.task),
        target=spec.target,
        metrics=() if built.metrics in ((ACCURACY,), (LOSS,)) else built.metrics,
        validation_metrics=None if built.task.validation is None or last is None else last.metrics,
        test_metrics=test,
        early_stopping=None if rule is None else _stopping(rule, counters.stop_reason),
        weights=weights,
        layout=built.layout,
        builder=SpecModel(spec),
        **more,
    )
