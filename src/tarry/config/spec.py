"""Spec: every setting of a run, made from TOML, flags or keywords, with all problems in one error.

    method = "orthofl"                  --method orthofl                    run(method="orthofl")
    [method]                            --method orthofl                    run(method={"name": "orthofl",
    name = "orthofl"; beta = 0.4          --method.beta 0.4                             "beta": 0.4})

The fields of `Spec` are the settings: their type, default and help are read off the class.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import torch

from ..core.errors import BadInput
from ..core.labels import with_axes
from ..core.method import Method
from ..core.metric import LOSS, Metric
from ..core.one_line import short_text
from ..core.optim import Optimizer, make_optimizer
from ..core.parameter import AtMost, Param
from ..core.storage import read_toml
from ..core.task import Task
from ..engine.budget import Budget
from ..metrics import metrics_of
from .components import CROSSES, REGISTRIES, Choice, errors_under_flag, parse_setting, with_absolute_file
from .cross_syntax import expand_cross
from .other_names import unknown_setting
from .track_syntax import Tracked, checked_trackers, parse_track, track_texts

__all__ = ["CROSSES", "REGISTRIES", "Choice", "Spec", "settings"]

_FEDASYNC, _DIGITS, _DIRICHLET, _RPI = map(Choice, ("fedasync", "digits", "dirichlet", "orthofl-rpi"))
_UP_TO_64_BITS = AtMost(2**63)


@dataclass(frozen=True)
class Spec:
    """Every setting of a run."""

    method: Annotated[Choice | Method, "Run this method: see `tarry methods`, or file.py:factory"] = _FEDASYNC
    local: Annotated[Choice | Method | None, "Train the clients as this method does [default: as --method]"] = None
    correct: Annotated[Choice | Method | None, "Correct updates as this method does [default: as --method]"] = None
    aggregate: Annotated[
        Choice | Method | None, "Collect updates before a server step as this method does [default: as --method]"
    ] = None
    step: Annotated[Choice | Method | None, "Compute the server step as this method does [default: as --method]"] = None
    reply: Annotated[
        Choice | Method | None, "Choose what clients start from next as this method does [default: as --method]"
    ] = None
    distill: Annotated[
        Choice | Method | None, "Add the distillation of this method, such as fedecho [default: none]"
    ] = None
    manifold: Annotated[
        Choice | Callable[..., Any] | None,
        "Move the global model along this curve: line, bezier or file.py:factory [default: as --method]",
    ] = None
    task: Annotated[
        Choice | Task, "Learn this task: see `tarry tasks`, NAME of a file in TARRY_DATA, or file.py:factory"
    ] = _DIGITS
    partition: Annotated[
        Choice | Callable[..., Any], "Deal the examples to clients by this partition: see `tarry partitions`"
    ] = _DIRICHLET
    delay: Annotated[
        Choice | Callable[..., Any], "Draw the durations of visits from this delay model: see `tarry delays`"
    ] = _RPI
    unlabeled: Annotated[
        Choice | None, "Give the server these unlabeled inputs: see `tarry unlabeled` [default: those of the task]"
    ] = None
    validation: Annotated[
        float | None,
        "Hold out this share of the training examples, and score on it until the end of the run; the test set is "
        "scored once, at the end [default: no validation set]",
    ] = None
    patience: Annotated[
        int | None,
        "Stop after so many evaluations in a row without a better score on the validation set, and return the best "
        "weights [default: never]",
    ] = None
    seed: Annotated[int, "Seed of all random numbers", _UP_TO_64_BITS] = 0
    clients: Annotated[int | None, "Number of clients [default: 10, or as many as the task has]"] = None
    concurrency: Annotated[
        int | None, "Number of clients that train at a time, which is the cohort in rounds [default: all]"
    ] = None
    min_samples: Annotated[int, "Least number of examples that a client is dealt"] = 1
    time: Annotated[float | None, "Stop after so many virtual seconds [default: 10000 if no other budget is given]"] = (
        None
    )
    updates: Annotated[int | None, "Stop after so many accepted updates [default: no limit]", _UP_TO_64_BITS] = None
    rounds: Annotated[int | None, "Stop after so many server steps [default: no limit]", _UP_TO_64_BITS] = None
    target: Annotated[float | None, "Stop at this test accuracy, or other score of --metric [default: none]"] = None
    metric: Annotated[
        tuple[str | Metric, ...] | None,
        "Measure these on the test set, the first as the score: names of `tarry metrics` or file.py:NAME, with commas "
        "[default: those of the task]",
    ] = None
    eval_every: Annotated[float | None, "Evaluate every so many virtual seconds [default: a fiftieth of --time]"] = None
    epochs: Annotated[
        int | None, "Number of passes over its data that a client makes in a visit [default: 5 unless --steps is given]"
    ] = None
    steps: Annotated[int | None, "Number of mini-batches of a visit, instead of --epochs [default: none]"] = None
    batch: Annotated[
        int | Literal["all"], "Number of examples in a mini-batch; `all` takes the whole data of the client"
    ] = 32
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], "Optimizer of the clients"] = "sgd"
    lr: Annotated[float, "Learning rate of the clients"] = 0.05
    lr_decay: Annotated[
        float, "Factor by which the learning rate is multiplied at every server step: exponential:factor=FACTOR"
    ] = 1.0
    lr_schedule: Annotated[
        Choice | Callable[..., Any] | None,
        "Change the learning rate of the clients by this schedule: see `tarry schedules` [default: constant]",
    ] = None
    server_lr_schedule: Annotated[
        Choice | Callable[..., Any] | None,
        "Change the learning rate of the server by this schedule, where the method has one [default: constant]",
    ] = None
    clip_norm: Annotated[float | None, "Rescale gradients of the clients that are longer than this [default: none]"] = (
        None
    )
    clip_value: Annotated[
        float | None, "Limit every entry of the clients' gradients to this size [default: no limit]"
    ] = None
    momentum: Annotated[float, "Momentum of sgd"] = 0.0
    weight_decay: Annotated[float, "Weight decay of any optimizer"] = 0.0
    failure_rate: Annotated[float, "Probability that a visit is lost"] = 0.0
    availability: Annotated[
        str | Mapping[str, Any] | None,
        "Read when clients are available from this CSV file: client,start,end [default: always]",
    ] = None
    dtype: Annotated[Literal["float32", "float64"], "Type of weights and inputs"] = "float32"
    device: Annotated[str, "Device of the training, cpu or cuda"] = "cpu"
    executor: Annotated[
        Literal["inline", "pool", "batched", "ray", "auto"] | None,
        "Train clients one by one (inline), in --workers processes (pool), together (batched), on a Ray cluster "
        "(ray) or as is fastest here (auto) [default: inline, or pool if --workers is above 1]",
    ] = None
    workers: Annotated[int, "Number of training processes, or of threads or streams of batched", AtMost(4096)] = 1
    address: Annotated[
        str | None, "Connect to the Ray cluster at HOST:PORT or auto [default: start one on this machine]"
    ] = None
    gpus: Annotated[float | None, "Share of a GPU that each Ray worker holds [default: 1 with --device cuda]"] = None
    precision: Annotated[
        Literal["float32", "tf32", "bf16"],
        "Precision of matrix products in training: float32 is exact, tf32 and bf16 are faster on a GPU",
    ] = "float32"
    compile: Annotated[
        bool, "Compile the steps of batched by torch.compile, which takes a while and pays in long runs"
    ] = False
    lookahead: Annotated[int, "Number of visits that workers train before they are needed; the result is the same"] = 0
    worker_timeout: Annotated[
        float, "Seconds after which a process that does not respond (stopped, hung) is replaced; 0: never"
    ] = 60.0
    strict: Annotated[bool, "Stop at the first update that is not finite, instead of rejecting it"] = False
    gate: Annotated[
        bool,
        "Check updates before the method sees them, quarantine clients that send bad ones, and restore the last "
        "healthy model if its loss explodes",
    ] = False
    norm_multiple: Annotated[
        float, "With --gate: reject updates whose norm is above so many times the typical one; 0: no such limit"
    ] = 20.0
    norm_bound: Annotated[
        float | None, "With --gate: reject updates whose norm is above this [default: no such limit]"
    ] = None
    max_examples: Annotated[
        int | None, "With --gate: reject updates of clients that report more examples [default: no such limit]"
    ] = None
    quarantine: Annotated[
        float, "With --gate: seconds without work for a client with three rejected updates, doubled each time; 0: none"
    ] = 60.0
    loss_multiple: Annotated[
        float,
        "With --gate: restore the last healthy model if its loss is above so many times the typical one; 0: never",
    ] = 5.0
    personalize: Annotated[
        int | None,
        "Fine-tune the final model on every client for so many epochs, and score it on the client's own classes "
        "[default: no fine-tuning]",
    ] = None
    client_metrics: Annotated[
        bool,
        "Score the global model on every client's own mix of classes at each evaluation: mean, worst decile, standard "
        "deviation and Jain's index over clients",
    ] = False
    diagnose: Annotated[
        bool, "Record how far updates agree with each other, and what the method reports about itself"
    ] = False
    axes: Annotated[
        str | None, "Name these settings in the label, as in lr,epochs; a grid of `tarry compare` does [default: none]"
    ] = None
    cache_limit: Annotated[
        float, "Megabytes of memory for each table that is kept of all clients; a larger one is in a file"
    ] = 2048.0
    checkpoint_every: Annotated[float, "Wall-clock seconds between checkpoints, with --out"] = 10.0
    proofs: Annotated[
        int,
        "Number of visits stored with their results, with --out, to be trained again by `tarry verify`; 0: no digests",
    ] = 8
    track: Annotated[
        tuple[Tracked, ...] | None,
        "Log to these trackers: tensorboard, mlflow, wandb or file.py:factory, with parameters as in "
        "mlflow:experiment=NAME [default: none]",
    ] = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Spec:
        """Make a spec of settings; unknown names, wrong types and contradictions are reported together."""
        return cls.of_expanded(*expand_cross(given))

    @classmethod
    def of_expanded(cls, given: Mapping[str, Any], problems: Iterable[str] = ()) -> Spec:
        """Make a spec of settings that `expand_cross` has seen; `problems` are those that it found."""
        known, values, problems = settings(), dict[str, Any](), list(problems)
        for name, value in given.items():
            if name not in known:
                continue
            try:
                values[name] = parse_track(value) if name == "track" else parse_setting(known[name], value)
            except (ValueError, TypeError) as e:
                problems.append(f"--{name.replace('_', '-')} {short_text(value)}: {e}")
        chosen = {g: values.get(g, known[g].default) for g in REGISTRIES}
        choices, wrong_choices = _checked_choices(chosen)
        wrong_choices += _drop_wrong_metrics(values)
        try:
            values["track"] = checked_trackers(values.get("track"))
        except BadInput as e:
            problems += e.problems
        spec = cls(**{**values, **choices})
        problems += spec._contradictions(wrong_choices)
        problems += [unknown_setting(name, value, known, chosen) for name, value in given.items() if name not in known]
        if problems:
            raise BadInput(problems)
        return spec._with_defaults()

    def _contradictions(self, wrong_choices: Iterable[str]) -> Iterable[str]:
        positive = ("clients", "concurrency", "eval_every", "epochs", "steps", "workers", "checkpoint_every")
        for name in (*positive, "cache_limit", "norm_bound", "max_examples", "patience"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                yield f"--{name.replace('_', '-')} {value}: must be above 0"
        for name in ("min_samples", "lookahead", "personalize", "proofs"):
            if (getattr(self, name) or 0) < 0:
                yield f"--{name.replace('_', '-')} {getattr(self, name)}: must be 0 or more"
        for name in ("norm_multiple", "loss_multiple"):
            if getattr(self, name) != 0 and not 1 < getattr(self, name) < inf:
                yield f"--{name.replace('_', '-')} {getattr(self, name)}: must be above 1, or 0"
        if not 0 <= self.quarantine < inf:
            yield f"--quarantine {self.quarantine}: must be 0 or more"
        if self.worker_timeout != 0 and not self.worker_timeout >= 2:
            yield f"--worker-timeout {self.worker_timeout}: must be 0 or at least 2"
        if self.batch != "all" and self.batch < 1:
            yield f"--batch {self.batch}: must be 1 or more, or `all`"
        if self.device not in ("cpu", "cuda") or (self.device == "cuda" and not torch.cuda.is_available()):
            yield f"--device {self.device}: there is no such device here; cpu always is"
        if not 0 < self.lr_decay <= 1:
            yield f"--lr-decay {self.lr_decay}: must be above 0 and at most 1"
        elif self.lr_decay != 1 and self.lr_schedule is not None:
            schedule = self.name_of("lr_schedule")
            yield f"--lr-decay {self.lr_decay} --lr-schedule {schedule}: a decay is a schedule; leave out one"
        if not 0 <= self.failure_rate < 1:
            yield f"--failure-rate {self.failure_rate}: must be in [0, 1)"
        if self.validation is not None and not 0 < self.validation < 1:
            yield f"--validation {self.validation}: must be above 0 and below 1, a share of the training examples"
        if self.epochs is not None and self.steps is not None:
            yield f"--epochs {self.epochs} --steps {self.steps}: local work is one of the two"
        if self.clients is not None and self.concurrency is not None and self.concurrency > self.clients:
            yield f"--concurrency {self.concurrency}: there are only {self.clients} clients; ask for at most that many"
        if self.executor == "inline" and self.workers > 1:
            yield f"--executor inline --workers {self.workers}: inline trains in one process; use --executor pool"
        for check in (self._budget, self.client_optimizer):
            try:
                check()
            except BadInput as e:
                yield from e.problems
        for axis in self.axis_names:
            if axis.partition(".")[0] not in settings():
                yield f"--axes {self.axes}: {axis} is no setting; name settings such as lr or partition.alpha"
        yield from wrong_choices
        yield from self._executor_contradictions()

    def _executor_contradictions(self) -> Iterable[str]:
        if self.device != "cpu" and (self.executor == "pool" or (self.workers > 1 and self.executor is None)):
            yield (
                f"--device {self.device} --workers {self.workers}: worker processes train on the cpu only;"
                " use --executor batched, or auto"
            )
        for name in ("address", "gpus"):
            if self.executor != "ray" and getattr(self, name) is not None:
                yield f"--{name} {getattr(self, name)}: it is Ray's; give --executor ray too"
        if self.gpus is not None and not 0 < self.gpus <= 1:
            yield f"--gpus {self.gpus}: must be above 0 and at most 1, the share of one GPU"
        elif self.gpus is not None and self.device == "cpu":
            yield f"--gpus {self.gpus} --device cpu: it has no effect there; give --device cuda too"
        if self.precision != "float32" and self.dtype == "float64":
            yield f"--precision {self.precision} --dtype float64: reduced precision is of float32; leave out one"
        if self.compile and self.executor not in ("batched", "auto"):
            yield "--compile: steps are compiled of clients that train together; add --executor batched"

    def _budget(self) -> None:
        if (self.time, self.updates, self.rounds, self.target) != (None, None, None, None):
            metric = LOSS if self.metric is None else metrics_of(self.metric)[0]  # the task may have another
            Budget(self.time, self.updates, self.rounds, self.target, metric)

    @property
    def gpu_share(self) -> float:
        """The share of a GPU that a Ray worker holds."""
        return self.gpus if self.gpus is not None else float(self.device != "cpu")

    def client_optimizer(self) -> Optimizer:
        """The optimizer that the settings name, at --lr."""
        return make_optimizer(
            self.optimizer,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            clip_value=self.clip_value,
        )

    def _with_defaults(self) -> Spec:
        spec = self
        if (self.time, self.updates, self.rounds, self.target) == (None, None, None, None):
            spec = replace(spec, time=10000.0)
        if self.epochs is None and self.steps is None:
            spec = replace(spec, epochs=5)
        if isinstance(self.availability, str):
            spec = replace(spec, availability=str(Path(self.availability).resolve()))
        if self.metric is not None:
            spec = replace(spec, metric=tuple(with_absolute_file(m) if isinstance(m, str) else m for m in self.metric))
        choices: dict[str, Any] = {
            g: c.with_absolute_paths() for g in REGISTRIES if isinstance(c := getattr(spec, g), Choice)
        }
        return replace(spec, **choices)

    @property
    def label(self) -> str:
        """The method with the parameters that were given, what it is crossed with, and the values of the axes."""
        parts = [f"{c}={self.name_of(c)}" for c in CROSSES if getattr(self, c) is not None]
        method = "+".join([self.name_of("method"), *parts])
        return with_axes(method, {axis: self._value_of(axis) for axis in self.axis_names})

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The settings that the label names besides the method."""
        return tuple(name.strip() for name in (self.axes or "").split(",") if name.strip())

    def _value_of(self, axis: str) -> Any:
        """Return the value of a setting, or of a parameter of a component: lr, partition.alpha."""
        group, _, parameter = axis.partition(".")
        value = getattr(self, group)
        return value.params.get(parameter) if parameter and isinstance(value, Choice) else value

    def name_of(self, group: str) -> str:
        """A choice as it is written on the command line; an object by its own name."""
        value = getattr(self, group)
        if group == "metric":
            return ",".join(m if isinstance(m, str) else m.name for m in value or ())
        return (
            str(value) if isinstance(value, Choice) else str(getattr(value, "name", getattr(value, "__name__", group)))
        )

    def objects(self) -> list[str]:
        """The settings that hold Python objects and cannot be written down."""
        objects = [g for g in REGISTRIES if not isinstance(getattr(self, g), Choice | None)]
        return objects + (["metric"] if any(isinstance(m, Metric) for m in self.metric or ()) else [])

    def _texts(self) -> Iterator[tuple[str, Any]]:
        """Yield the settings that may hold texts, by the flag's name."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Choice):
                flag = f.name.replace("_", "-")
                yield flag, value.name
                yield from ((f"{flag}.{name}", item) for name, item in value.params.items())
            elif isinstance(value, str):
                yield f.name.replace("_", "-"), value
            elif isinstance(value, tuple):
                yield from ((f.name, item) for item in value if isinstance(item, str))

    def to_toml(self) -> str:
        """The spec as resolved, in TOML; a Python object is named but cannot be read back.

        Raise BadInput for a text that is no UTF-8, such as a file name of other bytes.
        """
        for name, value in self._texts():
            if any("\ud800" <= c <= "\udfff" for c in str(value)):
                raise BadInput(f"--{name} {value}: it is not UTF-8, as spec.toml is; rename the file or folder")
        plain, tables = [], []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "metric" and f.name in self.objects():
                plain.append(f"# metric: a Python object ({self.name_of('metric')})")
            elif f.name == "track":
                if names := track_texts([t for t in self.track or () if isinstance(t, Choice)]):
                    plain.append(f"track = {_toml(names)}")
            elif f.name in REGISTRIES and not isinstance(value, Choice | None):
                name = getattr(value, "name", getattr(value, "__name__", type(value).__name__))
                plain.append(f"# {f.name}: a Python object ({' '.join(str(name).split())})")
            elif isinstance(value, Choice) and value.params:
                body = {"name": value.name, **value.params}
                tables.append(f"\n[{f.name}]\n" + "\n".join(f"{k} = {_toml(v)}" for k, v in body.items()))
            elif isinstance(value, Mapping):
                tables.append(f"\n[{f.name}]\n" + "\n".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()))
            elif value is not None:
                plain.append(f"{f.name} = {_toml(value.name if isinstance(value, Choice) else value)}")
        return "\n".join(plain + tables) + "\n"

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        """The settings of a TOML file, as `Spec.of` takes them."""
        return read_toml(path, f"--spec {path}")


def _checked_choices(values: Mapping[str, Any]) -> tuple[dict[str, Choice], list[str]]:
    """Return the choices by group, with their parameters as their types, and the problems of those that are wrong."""
    checked, problems = dict[str, Choice](), list[str]()
    for group, value in values.items():
        if isinstance(value, Choice):
            try:
                with errors_under_flag(group):
                    checked[group] = value.with_entry(group)
            except BadInput as e:
                problems += e.problems
    return checked, problems


def _drop_wrong_metrics(values: dict[str, Any]) -> list[str]:
    """Remove metrics that cannot be made from the settings; return their problems."""
    try:
        if values.get("metric") is not None:
            metrics_of(values["metric"])
    except BadInput as e:
        del values["metric"]
        return list(e.problems)
    return []


def settings() -> dict[str, Param]:
    """The settings by name, with type, default and help."""
    hints = get_type_hints(Spec, include_extras=True)
    out = {}
    for f in fields(Spec):
        kind, text, *limits = typing.get_args(hints[f.name])
        out[f.name] = Param(f.name, kind, f.default, text, *(limit.size for limit in limits))
    return out


def _toml(value: Any) -> str:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None:
        return '"none"'  # TOML has no null; the parameter reads it so
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
