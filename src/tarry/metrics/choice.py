"""Choice of metrics: from `f1,topk:k=5`, names, records, functions and objects of torchmetrics to metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..core.errors import BadInput
from ..core.metric import Metric
from .registry import metric_of, metrics

__all__ = ["MetricChoice", "chosen_metrics", "metrics_of"]

#: a name with parameters (`topk:k=5`), a metric, or a function (outputs, targets) → number
MetricChoice = str | Metric | Callable[[Tensor, Tensor], Any]
_PARAMETER = re.compile(r"\s*\w+\s*=")  # begins another parameter of the name before


def chosen_metrics(value: Any) -> tuple[str | Metric, ...]:
    """Return the names and metrics of a setting: text with commas, or a sequence; ValueError if it is wrong."""
    values = value if isinstance(value, list | tuple) else [value]
    chosen: list[str | Metric] = []
    for one in values:
        if isinstance(one, str):
            chosen += _names(one)
        elif (metric := metric_of(one)) is not None:
            chosen.append(metric)
        else:
            kind = one.__name__ if isinstance(one, type) else type(one).__name__
            raise ValueError(
                f"a metric is a name, a Metric, a function (outputs, targets) or of torchmetrics, got {kind}"
            )
    if not chosen:
        raise ValueError("wants at least one metric; `tarry metrics` lists them")
    return tuple(chosen)


def metrics_of(chosen: Sequence[Any]) -> tuple[Metric, ...]:
    """Return the metrics of names, functions and objects; raise BadInput for an unknown name or two of one name."""
    try:
        made = tuple(_named(one) if isinstance(one, str) else one for one in chosen_metrics(list(chosen)))
    except ValueError as e:
        raise e if isinstance(e, BadInput) else BadInput(f"--metric: {e}") from e
    names = [m.name for m in made]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"--metric {twice[0]}: two metrics have this name; leave one out, or give it another (name=...)")
    return made


def _names(text: str) -> list[str]:
    """Return the names in `f1,topk:k=5`: a piece `k=5` belongs to the name before it."""
    names: list[str] = []
    for piece in text.split(","):
        if names and _PARAMETER.match(piece):
            names[-1] += f",{piece.strip()}"
        elif piece.strip():
            names.append(piece.strip())
    return names


def _named(text: str) -> Metric:
    head, colon, tail = text.rpartition(":")
    if not colon or "=" not in tail:
        head, tail = text, ""
    pairs = [pair.partition("=") for pair in tail.split(",")] if tail else []
    entry = metrics.find(head)
    return entry.make(entry.check({name.strip(): value.strip() for name, _, value in pairs}))
