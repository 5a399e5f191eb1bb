"""Registry of the metrics: by name, `torchmetrics:NAME`, or `file.py:NAME` with a function, a metric or a factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from ..core.metric import Metric
from ..core.registry import Entry, Registry
from .external import PREFIX, TorchMetricEntry, is_torch_metric, wrap

__all__ = ["metric_of", "metrics"]

MetricName = Annotated[str, "Name of the metric in results, if not that of the function"]
HigherIsBetter = Annotated[bool, "Whether a higher value is better"]
MetricUnit = Annotated[str, "Unit of the values; % for shares between 0 and 1"]


class MetricRegistry(Registry[Metric]):
    """The metrics by name.

    >>> tarry.metrics["topk"](k=3)
    Metric('top3', higher is better, in %)
    """

    def find(self, name: str) -> Entry[Metric]:
        """Return the entry of that name, of a metric of torchmetrics, or of what a file holds.

        >>> [p.name for p in tarry.metrics.find("ece").params]
        ['bins']
        """
        return TorchMetricEntry.of(name) if name.startswith(PREFIX) else super().find(name)

    def _factory(self, found: Any) -> Callable[..., Any] | None:
        """Return the factory of what a file holds: a metric, a function (outputs, targets) or a factory."""
        if isinstance(found, Metric):
            return _constant(found)
        return _of_function(found) if callable(found) and _takes_outputs(found) else super()._factory(found)


metrics: Registry[Metric] = MetricRegistry("metric", Metric)


def metric_of(value: Any) -> Metric | None:
    """Return the metric that a Python object stands for: a metric, a function, one of torchmetrics; else None."""
    if isinstance(value, Metric):
        return value
    if is_torch_metric(value):
        return wrap(value)
    return Metric(_name_of(value), value) if callable(value) and _takes_outputs(value) else None


def _constant(metric: Metric) -> Callable[..., Metric]:
    def factory() -> Metric:
        return metric

    factory.__doc__ = f"The metric {metric.name}."
    return factory


def _of_function(function: Callable[..., Any]) -> Callable[..., Metric]:
    def factory(*, name: MetricName = "", higher_is_better: HigherIsBetter = True, unit: MetricUnit = "") -> Metric:
        return Metric(name or _name_of(function), function, higher_is_better=higher_is_better, unit=unit)

    factory.__doc__ = inspect.getdoc(function) or f"The function {_name_of(function)}."
    return factory


def _takes_outputs(function: Callable[..., Any]) -> bool:
    """Return whether a function takes (outputs, targets): a factory of a metric has no required arguments by place."""
    if isinstance(function, type):
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in by_place and p.default is inspect.Parameter.empty for p in parameters) == 2


def _name_of(function: Callable[..., Any]) -> str:
    name = str(getattr(function, "__name__", type(function).__name__)).strip("_")
    return "function" if name == "<lambda>" else name
