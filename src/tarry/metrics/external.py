"""Metrics of torchmetrics, by name or as objects. The library is imported when one is asked for.

    torchmetrics:F1Score:task=multiclass,num_classes=10,average=macro

Parameters are those of the class; numbers, true, false and none are read as such. `name`, `higher_is_better` and `unit`
are tarry's own. Chunks go to the metric's `update`, so its memory is what torchmetrics keeps.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadInput, first_line, near
from ..core.metric import Metric
from ..core.optional_import import optional_import
from ..core.registry import Entry, UnknownName
from .forms import labeled_rows

__all__ = ["PREFIX", "TorchMetricEntry", "is_torch_metric", "wrap"]

PREFIX = "torchmetrics:"
_MODULES = ("torchmetrics", "torchmetrics.classification", "torchmetrics.regression", "torchmetrics.text")
_OWN = ("name", "higher_is_better", "unit")


class TorchMetricEntry(Entry[Metric]):
    """A class of torchmetrics as an entry of the registry; its parameters are whatever the class takes."""

    @classmethod
    def of(cls, name: str) -> TorchMetricEntry:
        """Return the entry of `torchmetrics:NAME`; UnknownName if the library does not have it."""
        found, wanted = _classes(), name.removeprefix(PREFIX)
        if wanted not in found:
            raise UnknownName(f"--metric {name}: torchmetrics has no metric of this name.{near(wanted, found)}")
        kind = found[wanted]

        def factory(**params: Any) -> Metric:
            own = {k: params.pop(k) for k in _OWN if k in params}
            try:
                made = kind(**params)
            except (TypeError, ValueError) as e:
                raise BadInput(f"--metric {name}: torchmetrics does not accept this ({first_line(e)})") from e
            return wrap(made, **{"name": wanted, **own})

        factory.__doc__ = inspect.getdoc(kind) or wanted
        return cls(name, factory, "", "", (), "metric", Metric)

    def check(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters, numbers and constants in texts as such; the class checks them."""
        return {name: _literal(value) for name, value in params.items()}


def is_torch_metric(value: Any) -> bool:
    """Return whether an object is a metric of torchmetrics, which is not imported for that."""
    return any(c.__module__.startswith("torchmetrics.") and c.__name__ == "Metric" for c in type(value).__mro__)


def wrap(made: Any, *, name: str = "", higher_is_better: bool | None = None, unit: str = "") -> Metric:
    """Return the metric of an object of torchmetrics, which itself is not changed."""
    name = name or type(made).__name__
    higher = made.higher_is_better if higher_is_better is None else higher_is_better
    if higher is None:
        raise BadInput(
            f"--metric {name}: torchmetrics does not say whether higher is better; say it, as in"
            f" --metric {PREFIX}{name}:higher_is_better=false"
        )
    return Metric(name, streaming=partial(_TorchAccumulator, name, made), higher_is_better=bool(higher), unit=unit)


class _TorchAccumulator:
    """A fresh copy of a metric of torchmetrics that is given one test set."""

    def __init__(self, name: str, made: Any):
        self._name, self._metric = name, copy.deepcopy(made)
        self._metric.reset()
        self._of_texts = type(made).__module__.startswith("torchmetrics.text")
        self._of_classes = type(made).__module__.startswith("torchmetrics.classification")

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        outputs, targets = self._arranged(outputs, targets)
        try:
            self._metric.to(outputs.device).update(outputs, targets)
        except (TypeError, ValueError, RuntimeError, IndexError) as e:
            raise self._problem(e) from e

    def value(self) -> Any:
        try:
            return self._metric.compute()
        except (TypeError, ValueError, RuntimeError, IndexError) as e:
            raise self._problem(e) from e

    def _arranged(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets in the form that torchmetrics takes: a row for each place that counts."""
        if self._of_texts:
            return outputs, targets
        if self._of_classes and targets.ndim > 1 and outputs.shape[:-1] == targets.shape:
            return labeled_rows(self._name, outputs, targets)
        if outputs.shape != targets.shape and outputs.numel() == targets.numel():
            outputs = outputs.reshape(targets.shape)
        if self._of_classes and targets.is_floating_point() and bool(((targets == 0) | (targets == 1)).all()):
            targets = targets.to(torch.int64)
        return outputs, targets

    def _problem(self, e: Exception) -> BadInput:
        return BadInput(
            f"--metric {self._name}: torchmetrics rejects these outputs and targets"
            f" ({type(e).__name__}: {first_line(e)})"
        )


def _classes() -> dict[str, Any]:
    """Return the classes of torchmetrics by name."""
    with optional_import("torchmetrics"):
        modules = [import_module(name) for name in _MODULES]
    named = {name: getattr(module, name, None) for module in modules for name in module.__all__}
    return {name: kind for name, kind in named.items() if isinstance(kind, type)}


def _literal(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text
