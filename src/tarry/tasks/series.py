"""Tasks on time series, channels × time steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..core.task import Task
from .arrays import limit_training, make_task
from .data import ArrayDataset, catalog, load
from .options import FetchFromHub, ImageModel, TrainingLimit
from .registries import tasks

__all__ = ["har"]

_CLASSES = 6


def har(
    *, model: ImageModel = "resnet18-1d", limit: TrainingLimit = None, hub: FetchFromHub = False, **options: Any
) -> Task:
    arrays = limit_training(_normalize(load("har", hub=hub)), limit)
    return make_task("har", arrays, model=model, classes=_CLASSES, **options)


har.__doc__ = f"""Human activity: {catalog()["har"].what}.

Inputs are channels × 128 readings: the 9 channels of `UCI HAR Dataset` (body acceleration, angular velocity, total
acceleration) or those of har.npz. Each channel is normalized by the training set. `--partition groups` splits by
person.
"""
tasks.register("har")(har)


def _normalize(a: ArrayDataset) -> ArrayDataset:
    """Return series with mean 0 and deviation 1 per channel over the training set. A deviation of 0 counts as 1."""
    mean = a.x_train.mean((0, 2), np.float64, keepdims=True)
    std = a.x_train.std((0, 2), np.float64, keepdims=True)
    std[std <= 1e-9] = 1.0
    x, xt = (((x - mean) / std).astype(np.float32) for x in (a.x_train, a.x_test))
    return replace(a, x_train=x, x_test=xt)
