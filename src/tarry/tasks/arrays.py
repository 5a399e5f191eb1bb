"""Build tasks from arrays: normalize inputs by the training set, put channels first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from ..core.errors import BadInput
from ..core.task import Task
from .data.arrays import AnyArray, ArrayDataset, hold_out
from .models import model_for

__all__ = ["limit_training", "make_task", "normalize_images"]

_AT_A_TIME = 64  # images per block; a block fits into the processor's cache


def make_task(name: str, a: ArrayDataset, *, model: str, classes: int, **options: Any) -> Task:
    """Return the task of these arrays. `options` are those of the model."""
    return Task(
        name,
        model=model_for(model, a.x_train.shape[1:], classes, **options),
        loss=cross_entropy,
        train=(torch.from_numpy(a.x_train), torch.from_numpy(a.y_train)),
        test=(torch.from_numpy(a.x_test), torch.from_numpy(a.y_test)),
        groups=None if a.groups is None else torch.from_numpy(a.groups),
    )


def normalize_images(a: ArrayDataset, limit: int | None) -> tuple[ArrayDataset, tuple[float, ...]]:
    """Return normalized images (N×C×H×W) and the value of a black pixel in each channel.

    Each channel gets mean 0 and standard deviation 1 over the whole training set. If `limit` is given, only that many
    training images are kept; the mean and deviation are still those of the whole set.
    """
    table = _pixel_values(a.x_train)
    limited = limit_training(a, limit)
    x, xt = _channels_first(limited.x_train, table), _channels_first(limited.x_test, table)
    return replace(limited, x_train=x, x_test=xt), tuple(table[:, 0].tolist())


def limit_training(a: ArrayDataset, limit: int | None) -> ArrayDataset:
    """Return the arrays with at most `limit` training examples.

    The first examples are kept. If the set is sorted by class, a fixed stratified sample is kept instead.
    """
    if limit is None:
        return a
    if limit < 1:
        raise BadInput(f"--task.limit {limit}: must be 1 or more")
    y = a.y_train
    keep: slice | AnyArray = slice(limit)
    if limit < len(y) and y[0] != y[-1] and (np.diff(y) >= 0).all():
        keep = hold_out(y, limit)
    return replace(a, x_train=a.x_train[keep], y_train=y[keep], groups=None if a.groups is None else a.groups[keep])


def _channels(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the images as N×H×W×C; a missing channel axis is added."""
    return pixels if pixels.ndim == 4 else pixels[..., None]


def _pixel_values(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return, for each channel, the normalized value of each pixel value 0 … 255: (v/255 − mean) / std.

    Mean and std are taken over these images. A std of 0 counts as 1.
    """
    pixels = _channels(pixels)
    counts = np.zeros((pixels.shape[3], 256), np.int64)
    for at in range(0, len(pixels), _AT_A_TIME):
        for c, count in enumerate(counts):
            count += np.bincount(pixels[at : at + _AT_A_TIME, ..., c].ravel(), minlength=256)
    v = np.arange(256) / 255
    rows = []
    for count in counts:
        share = count / count.sum()
        mean = share @ v
        std = np.sqrt(share @ (v - mean) ** 2)
        rows.append((v - mean) / (std if std > 1e-9 else 1.0))
    return np.array(rows, np.float32)


def _channels_first(pixels: npt.NDArray[np.uint8], table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    pixels = _channels(pixels)
    n, h, w, channels = pixels.shape
    out = np.empty((n, channels, h, w), np.float32)
    for at in range(0, n, _AT_A_TIME):
        for c in range(channels):
            rows = slice(at, at + _AT_A_TIME)
            table[c].take(pixels[rows, ..., c], out=out[rows, c], mode="clip")
    return out
