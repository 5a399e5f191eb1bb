"""Keyword arguments of `run` and `compare`: their types for editors and type checkers, and a table of them to read.

`Spec` has the same settings as they are stored; a test compares the two, field by field.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

from ..core.errors import as_keywords
from ..core.method import Method
from ..core.one_line import cut_to_width
from ..metrics import MetricChoice
from ..trackers import Tracker
from . import spec
from .components import Choice

__all__ = ["GridSettings", "Named", "Setting", "Settings", "SharedSettings", "lists_keywords", "settings"]

F = TypeVar("F", bound=Callable[..., Any])
#: a registered component: a name with parameters, or a table {"name": ..., parameters}
Named = str | Mapping[str, Any]


class _ComponentSettings(TypedDict, total=False):
    """Settings that have one value in a comparison, besides parameters of components."""

    local: Named | Method | None
    correct: Named | Method | None
    aggregate: Named | Method | None
    step: Named | Method | None
    reply: Named | Method | None
    distill: Named | Method | None
    manifold: Named | Callable[..., Any] | None
    partition: Named | Callable[..., Any]
    delay: Named | Callable[..., Any] | Sequence[float | Sequence[float]]
    unlabeled: Named | None
    metric: MetricChoice | Sequence[MetricChoice] | None
    availability: str | Mapping[Any, Any] | None
    device: str
    executor: Literal["inline", "pool", "batched", "ray", "auto"] | None
    address: str | None
    gpus: float | None
    lookahead: int
    worker_timeout: float
    axes: str | None
    cache_limit: float
    checkpoint_every: float
    proofs: int
    track: Named | Tracker | Sequence[Named | Tracker] | None
    lr_schedule: Named | Callable[..., Any] | None
    server_lr_schedule: Named | Callable[..., Any] | None


class SharedSettings(_ComponentSettings, total=False):
    """The settings of a run that all runs of a comparison may have in common."""

    validation: float | None
    patience: int | None
    clients: int | None
    concurrency: int | None
    min_samples: int
    time: float | None
    updates: int | None
    rounds: int | None
    target: float | None
    eval_every: float | None
    epochs: int | None
    steps: int | None
    batch: int | Literal["all"]
    optimizer: Literal["sgd", "adam", "adamw"]
    lr: float
    lr_decay: float
    clip_norm: float | None
    clip_value: float | None
    momentum: float
    weight_decay: float
    failure_rate: float
    dtype: Literal["float32", "float64"]
    precision: Literal["float32", "tf32", "bf16"]
    compile: bool
    strict: bool
    gate: bool
    norm_multiple: float
    norm_bound: float | None
    max_examples: int | None
    quarantine: float
    loss_multiple: float
    personalize: int | None
    client_metrics: bool
    diagnose: bool


class GridSettings(_ComponentSettings, total=False):
    """The settings of a comparison: numbers and choices may have several values, which make a grid."""

    validation: float | Sequence[float | None] | None
    patience: int | Sequence[int | None] | None
    clients: int | Sequence[int | None] | None
    concurrency: int | Sequence[int | None] | None
    min_samples: int | Sequence[int]
    time: float | Sequence[float | None] | None
    updates: int | Sequence[int | None] | None
    rounds: int | Sequence[int | None] | None
    target: float | Sequence[float | None] | None
    eval_every: float | Sequence[float | None] | None
    epochs: int | Sequence[int | None] | None
    steps: int | Sequence[int | None] | None
    batch: int | Literal["all"] | Sequence[int | Literal["all"]]
    optimizer: Literal["sgd", "adam", "adamw"] | Sequence[Literal["sgd", "adam", "adamw"]]
    lr: float | Sequence[float]
    lr_decay: float | Sequence[float]
    clip_norm: float | Sequence[float | None] | None
    clip_value: float | Sequence[float | None] | None
    momentum: float | Sequence[float]
    weight_decay: float | Sequence[float]
    failure_rate: float | Sequence[float]
    dtype: Literal["float32", "float64"] | Sequence[Literal["float32", "float64"]]
    precision: Literal["float32", "tf32", "bf16"] | Sequence[Literal["float32", "tf32", "bf16"]]
    compile: bool | Sequence[bool]
    strict: bool | Sequence[bool]
    gate: bool | Sequence[bool]
    norm_multiple: float | Sequence[float]
    norm_bound: float | Sequence[float | None] | None
    max_examples: int | Sequence[int | None] | None
    quarantine: float | Sequence[float]
    loss_multiple: float | Sequence[float]
    personalize: int | Sequence[int | None] | None
    client_metrics: bool | Sequence[bool]
    diagnose: bool | Sequence[bool]


class Settings(SharedSettings, total=False):
    """The settings of a run, except its method and its task."""

    seed: int
    workers: int


@dataclass(frozen=True, repr=False)
class Setting:
    """A keyword argument of `run` and `compare`: its name, type, default and help.

    >>> tarry.settings()["lr"]
    lr: float = 0.05  Learning rate of the clients
    """

    name: str
    type: Any
    default: Any
    help: str

    @property
    def type_name(self) -> str:
        """The type in Python's notation.

        >>> tarry.settings()["batch"].type_name
        "int | Literal['all']"
        """
        return " | ".join(map(_type_name, get_args(self.type) if _is_union(self.type) else [self.type]))

    def __repr__(self) -> str:
        return cut_to_width(f"{self.name}: {self.type_name} = {self.default!r}  {self.help}")


class _SettingTable(dict[str, Setting]):
    """Settings by name, shown in a line each."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values()))


def settings() -> Mapping[str, Setting]:
    """Return the keyword arguments of `run` and `compare` by name, in the order of `tarry run --help`.

    >>> table = tarry.settings()
    >>> table["epochs"].default, "epoks" in table
    (None, False)
    >>> [name for name, setting in table.items() if "Ray" in setting.help]
    ['executor', 'address', 'gpus']
    """
    hints = get_type_hints(Settings)
    return _SettingTable(
        (name, Setting(name, hints[name], _plain(param.default), as_keywords(param.help, is_notice=True)))
        for name, param in spec.settings().items()
        if name in hints
    )


def _plain(default: Any) -> Any:
    return str(default) if isinstance(default, Choice) else default


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _type_name(kind: Any) -> str:
    """Return a type without its modules."""
    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", name).replace("NoneType", "None")


def lists_keywords(kind: type) -> Callable[[F], F]:
    """Decorate a function with `**settings`: notebooks complete each key of the TypedDict from its signature."""

    def decorate(function: F) -> F:
        signature, hints = inspect.signature(function), get_type_hints(kind)
        given = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_plain(p.default), annotation=hints[name])
            for name, p in spec.settings().items()
            if name in hints
        ]
        function.__signature__ = signature.replace(parameters=[*given, *named])  # type: ignore[attr-defined]
        return function

    return decorate
