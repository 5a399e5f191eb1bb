"""Result of a run: the numbers of `result.json`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..core.errors import BadInput, DamagedFile, errors_as_keywords, first_line
from ..core.layout import Layout
from ..core.metric import ACCURACY, LOSS, CurvePoint, Metric
from ..core.one_line import cut_to_width, short_text
from ..core.printable import printable
from ..core.storage import files_in, storage_errors
from .binding import bind, seal, unseal
from .result_shape import RESULT
from .rows import read_events
from .run_folder import RunFolder
from .shapes import check_shape
from .storage import make_folder, read_json, write_atomic
from .tensor_files import array_of, write_safetensors
from .views import CurveX, curve_rows, data_frame, plot_curve, result_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = [
    "PROGRESS",
    "ModelBuilder",
    "Result",
    "Staleness",
    "sha256",
    "staleness_summary",
    "write_progress",
    "write_result",
]

PROGRESS = "progress.json"  # the result of a federation that is not over
_RESULT, _WEIGHTS = "result.json", "model.safetensors"
#: the other files of a run that `Result.save` copies
_RECORD = ("meta.json", "events.jsonl", "arrivals.csv")
#: fields that are not in result.json
_IN_MEMORY = ("weights", "out", "layout", "builder", "finished")


class Staleness(NamedTuple):
    """Staleness of the accepted updates of a run, in server steps; 0 where there are none."""

    mean: float = 0.0
    p95: int = 0  # the smallest value that at least 95 % of the updates do not exceed
    max: int = 0


class ModelBuilder(Protocol):
    """Builder of a run's model: the module with its first weights, and the settings of the run as TOML."""

    def __call__(self) -> nn.Module: ...
    def to_toml(self) -> str: ...


@dataclass(frozen=True, repr=False)
class Result:
    """The numbers and the final weights of a run. `curve` holds the evaluations, `weights` the flat global vector.

    >>> result = tarry.run("fedasync", "digits", clients=3, updates=6)
    >>> result.updates, result.curve[-1].accuracy == result.final_accuracy
    (6, True)
    >>> repr(result).startswith("Result(fedasync on digits, seed 0: accuracy 0.")
    True
    """

    method: str
    label: str  # the method with the parameters that were given
    task: str
    seed: int
    n_clients: int
    virtual_time: float
    updates: int
    rounds: int
    final_accuracy: float | None
    final_loss: float | None
    curve: Sequence[CurvePoint]
    staleness: Staleness
    lost: int
    rejected: int
    weights_sha256: str
    wall_s: float
    bytes_up: int
    bytes_down: int
    peak_server_bytes: int
    version: str  # of tarry
    majority_accuracy: float | None = None  # accuracy of the best constant answer
    target: float | None = None  # score at which the run was to stop
    clock: str = "virtual"  # "wall" in a federation
    executor_info: str = ""  # how clients were trained, if that was chosen by measurement
    warnings: list[str] = field(default_factory=list)  # notices: settings without effect, automatic choices
    diagnostics: dict[str, Any] | None = None  # with --diagnose
    personalization: dict[str, Any] | None = None  # with --personalize: clients' own scores, before and after
    validation_metrics: Mapping[str, float | None] | None = None  # of the weights, where there is a validation set
    test_metrics: Mapping[str, float | None] | None = None  # of the weights, where the curve is on validation
    early_stopping: Mapping[str, Any] | None = None  # with --patience: why the run stopped, and the best evaluation
    metrics: tuple[Metric, ...] = ()  # what was measured, the score first; () stands for accuracy, or loss without it
    weights: Tensor | None = field(default=None, compare=False)
    out: Path | None = field(default=None, compare=False)
    layout: Layout | None = field(default=None, compare=False)  # the names of the stretches of `weights`
    builder: ModelBuilder | None = field(default=None, compare=False)
    finished: bool = True

    def __repr__(self) -> str:
        """Describe the run in one line of less than 120 characters."""
        state = "" if self.finished else ", unfinished"
        score = "" if self.final_score is None else f"{self.metric.text(self.final_score)} "
        time = f"{self.virtual_time:,.0f}" if self.virtual_time >= 100 else f"{self.virtual_time:.4g}"
        updates = f"{self.updates:,} update{'' if self.updates == 1 else 's'}"
        text = f"on {_cut_name(self.task)}, seed {self.seed}{state}: {score}after {time} s, {updates})"
        return cut_to_width(printable(f"Result({_cut_name(self.label)} {text}"))

    @property
    def metric(self) -> Metric:
        """The first metric: the score of the run, with its name, direction and unit.

        >>> tarry.run("fedasync", "digits", clients=3, updates=6, metric="f1,accuracy").metric
        Metric('f1', higher is better)
        """
        return first_metric(self.metrics, has_accuracy=self.final_accuracy is not None)

    @property
    def scored_on(self) -> Literal["test", "validation"]:
        """The set that the curve is on: the validation set if the run has one, else the test set.

        >>> result = tarry.run("fedasync", "digits", clients=3, updates=6, validation=0.1)
        >>> result.scored_on, result.final_metrics == result.test_metrics
        ('validation', True)
        """
        return "test" if self.validation_metrics is None else "validation"

    @property
    def final_on(self) -> Literal["test", "validation"]:
        """The set that the final scores are on: the test set, or the validation set of a task without one.

        >>> tarry.run("fedasync", "digits", clients=3, updates=6, validation=0.1).final_on
        'test'
        """
        return "test" if self.validation_metrics is None or self.test_metrics is not None else "validation"

    @property
    def final_score(self) -> float | None:
        """The value of the first metric for the final weights.

        >>> result = tarry.run("fedasync", "digits", clients=3, updates=6)
        >>> result.final_score == result.final_accuracy
        True
        """
        return self.final_metrics.get(self.metric.name)

    @property
    def final_metrics(self) -> Mapping[str, float | None]:
        """The metrics of the final weights by name, the loss among them: on the test set, or else the validation set.

        >>> list(tarry.run("fedasync", "digits", clients=3, updates=6, metric="f1,accuracy").final_metrics)
        ['f1', 'accuracy', 'loss']
        """
        if (final := self.test_metrics or self.validation_metrics) is not None:
            return final
        found = dict(self.curve[-1].metrics) if self.curve else {}
        for name, value in (("accuracy", self.final_accuracy), ("loss", self.final_loss)):
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what builds the model: another process may not be able to import it."""
        return {**self.__dict__, "builder": None}

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the event log, `events.jsonl`, of a run that has a folder.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = tarry.run("fedasync", "digits", clients=3, updates=6, out=folder)
        ...     sum(row["kind"] == "arrival" for row in result.events())
        6
        """
        log = None if self.out is None else self.out / "events.jsonl"
        if log is None or not log.is_file():
            raise BadInput(
                f"{'this run' if self.out is None else self.out}: there is no event log (events.jsonl);"
                " tarry.run(..., out=FOLDER) writes one"
            )
        return read_events(log)

    def to_frame(self, rows: Literal["evaluations", "events"] = "evaluations") -> DataFrame:
        """Return a pandas data frame with a row for each evaluation, or for each event of the run's log.

        >>> result = tarry.run("fedasync", "digits", clients=3, updates=6)
        >>> list(result.to_frame().columns)
        ['time', 'updates', 'accuracy', 'loss']
        """
        if rows not in ("evaluations", "events"):
            raise BadInput(f"--rows {rows}: must be evaluations or events")
        return data_frame(self.events()) if rows == "events" else data_frame(*curve_rows(self))

    def plot(self, x: CurveX = "time", y: str = "score", ax: Axes | None = None, **style: Any) -> Axes:
        """Draw the score, or the metric of that name, over time or updates on `ax`, or on new axes; return the axes.

        `style` goes to matplotlib's `Axes.plot`.

        >>> from matplotlib.figure import Figure
        >>> result = tarry.run("fedasync", "digits", clients=3, updates=6)
        >>> axes = result.plot(y="loss", ax=Figure().add_subplot(), color="black")
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('virtual time (s)', 'test loss')
        """
        with errors_as_keywords():
            return plot_curve(self, x, y, ax, **style)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a small table and the curve."""
        return result_html(self)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the final global weights by name, as PyTorch's `load_state_dict` takes them.

        Parameters that are not trained and whole-number buffers are not among them.

        >>> result = tarry.run("fedasync", "digits", clients=3, updates=6)
        >>> {name: tuple(tensor.shape) for name, tensor in result.state_dict().items()}
        {'1.weight': (64, 64), '1.bias': (64,), '3.weight': (10, 64), '3.bias': (10,)}
        """
        return {name: tensor.clone() for name, tensor in self._named_weights().items()}

    def _named_weights(self) -> dict[str, Tensor]:
        if self.weights is not None and self.layout is not None:
            return self.layout.views(self.weights.detach().cpu())
        path = None if self.out is None else self.out / _WEIGHTS
        if path is None or not path.is_file():
            raise BadInput(
                f"{'this run' if self.out is None else self.out}: there are no final weights ({_WEIGHTS})"
                + ("" if self.finished else "; the run is not finished")
            )
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            with storage_errors(path, "read"):
                named: dict[str, Tensor] = load_file(path)
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as e:
            raise DamagedFile(f"{path} cannot be read: {first_line(e)}") from e
        if other := [name for name, tensor in named.items() if tensor.dtype not in (torch.float32, torch.float64)]:
            raise DamagedFile(f"{path} cannot be read: {short_text(other[0])!r} holds {named[other[0]].dtype}")
        return named

    def model(self) -> nn.Module:
        """Return a new module of the task's architecture with the final global weights, on the CPU.

        >>> model = tarry.run("fedasync", "digits", clients=3, updates=6).model().eval()
        >>> type(model).__name__
        'Sequential'
        """
        if self.builder is None:
            there = "FOLDER" if self.out is None else repr(str(self.out))
            raise BadInput(
                f"{self!r} does not hold the settings that build its model; read it by tarry.read({there}), or load"
                " state_dict() into a module of your own"
            )
        named, module = self._named_weights(), self.builder()
        try:
            unknown = module.load_state_dict(named, strict=False).unexpected_keys
        except RuntimeError as e:  # other shapes
            where = self.out or "this run"
            raise BadInput(f"{where}: the weights are not of the model of task {self.task!r}: {first_line(e)}") from e
        if unknown:
            raise BadInput(
                f"{self.out or 'this run'}: the model of task {self.task!r} has no tensor {unknown[0]!r}; it is not the"
                " one of the run"
            )
        return module

    def save(self, folder: str | Path) -> None:
        """Write the result, the weights and the settings to a new folder, which `tarry.read` reads.

        >>> import tempfile
        >>> result = tarry.run("fedasync", "digits", clients=3, updates=6)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result.save(folder)
        ...     tarry.read(folder) == result
        True
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or files_in(folder)):
            raise BadInput(f"{folder}: it is not an empty folder; name another one")
        make_folder(folder)
        for name in _RECORD:
            if self.out is not None and (self.out / name).is_file():
                with storage_errors(folder / name):
                    shutil.copy(self.out / name, folder / name)
        if self.builder is not None:
            write_atomic(folder / "spec.toml", self.builder.to_toml().encode())
        write_result(folder, self)

    def to_json(self) -> str:
        """Return the numbers of the run as in result.json; NaN and infinity are null.

        >>> import json
        >>> result = tarry.run("fedasync", "digits", clients=3, updates=6)
        >>> json.loads(result.to_json())["updates"]
        6
        """
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _IN_MEMORY}
        plain["curve"] = [point.to_row() for point in self.curve]
        plain |= {"metrics": [_described(m) for m in self.metrics]} if plain.pop("metrics") else {}
        for name in ("validation_metrics", "test_metrics", "early_stopping"):
            if plain[name] is None:
                del plain[name]
        plain["staleness"] = self.staleness._asdict()
        return json.dumps(_finite(plain), indent=1) + "\n"

    @classmethod
    def read(cls, folder: str | Path) -> Result:
        """Return the result of the run in a folder, or the present one of a federation that is not over.

        `tarry.read` reads comparisons and unfinished runs, too, and what it returns can build its model.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = tarry.run("fedasync", "digits", clients=3, updates=6, out=folder)
        ...     tarry.Result.read(folder) == result
        True
        """
        folder = Path(folder)
        path = folder / _RESULT
        if not path.is_file() and (folder / PROGRESS).is_file():
            path = folder / PROGRESS
        if not path.is_file():
            raise BadInput(f"{folder}: no finished run is here (no result.json); `tarry resume {folder}` finishes one")
        raw = unseal(path, read_json(path))
        check_shape(path, raw, RESULT)
        _check_settings(path, raw.pop("bound_to", None))
        raw["metrics"] = tuple(Metric(**m) for m in raw.get("metrics", ()))
        accurate = raw["final_accuracy"] is not None or any(p[2] is not None for p in raw["curve"])
        first = first_metric(raw["metrics"], has_accuracy=accurate).name
        raw["curve"] = [CurvePoint.from_row(p, first) for p in raw["curve"]]
        raw["staleness"] = Staleness(**raw["staleness"])
        return cls(**raw, out=folder, finished=path.name == _RESULT)


def first_metric(metrics: Sequence[Metric], *, has_accuracy: bool) -> Metric:
    """Return the metric that is the score; files without a list of metrics have accuracy, or the loss alone."""
    return metrics[0] if metrics else ACCURACY if has_accuracy else LOSS


def _described(metric: Metric) -> dict[str, Any]:
    named = {"name": metric.name, "higher_is_better": metric.higher_is_better, "unit": metric.unit}
    return {**named, **({} if metric.best is None else {"best": metric.best})}


def _check_settings(path: Path, bound: dict[str, Any] | None) -> None:
    """Raise DamagedFile if a result is bound to other settings than those of its folder."""
    settings = bound and bound["settings_sha256"]
    if settings and (path.parent / "meta.json").is_file() and RunFolder(path.parent).meta().settings_sha256 != settings:
        raise DamagedFile(f"{path}: it is of a run with other settings than meta.json; restore them from a copy")


def _cut_name(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}..."


def write_result(folder: Path, result: Result) -> None:
    """Write the weights by name, then result.json: a folder with a result holds a finished run.

    result.json carries a digest of itself, the digest of the settings, and those of the other files of the run.
    """
    write_safetensors(folder / _WEIGHTS, {k: array_of(v) for k, v in result._named_weights().items()})
    plain = {**json.loads(result.to_json()), "bound_to": bind(folder)}
    write_atomic(folder / _RESULT, seal(plain))


def write_progress(folder: Path, result: Result) -> None:
    """Write the present result of a federation that is not over."""
    write_atomic(folder / PROGRESS, seal(json.loads(result.to_json())))


def _finite(x: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(x, float):
        return x if isfinite(x) else None
    if isinstance(x, Mapping):
        return {k: _finite(v) for k, v in x.items()}
    return [_finite(v) for v in x] if isinstance(x, list | tuple) else x


def sha256(weights: Tensor) -> str:
    """Return the digest of the bytes of a weight vector."""
    return hashlib.sha256(array_of(weights).data).hexdigest()


def staleness_summary(counts: Counter[int]) -> Staleness:
    """Return the mean, 95th percentile and maximum, from how often each value occurs."""
    n = sum(counts.values())
    if n == 0:
        return Staleness()
    seen, p95 = 0, 0
    for value in sorted(counts):
        seen += counts[value]
        p95 = value
        if seen >= 0.95 * n:
            break
    return Staleness(sum(v * c for v, c in counts.items()) / n, p95, max(counts))
