"""Data sets of images or series as arrays, and the checks that every reader applies.

Inputs are images (uint8, N×H×W or N×H×W×C) or floating-point numbers of any shape; labels are 0 … classes − 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.errors import BadInput
from ...core.rng import Stream, key, permutation
from .apportion import apportion

__all__ = [
    "AnyArray",
    "ArrayDataset",
    "Labels",
    "check_classes",
    "check_inputs",
    "check_labels",
    "check_shape",
    "check_split",
    "describe_array",
    "hold_out",
    "whole_numbers",
]

_MOST_CLASSES = 100_000  # larger labels are identifiers or measurements; their output layer would exhaust memory
_MOST_CHANNELS = 4

AnyArray = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ArrayDataset:
    """A data set as read: inputs uint8 (images) or float32, labels, and the natural group of each training example."""

    x_train: AnyArray
    y_train: Labels
    x_test: AnyArray
    y_test: Labels
    groups: Labels | None = None


def hold_out(labels: Labels, n: int, drawn_by: int | None = None) -> npt.NDArray[np.bool_]:
    """Return a mask of `n` examples, stratified by class; the same for every seed of a run unless a key is given."""
    order = permutation(key(0, Stream.DATA) if drawn_by is None else drawn_by, len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    marked = np.zeros(len(labels), bool)
    for c, take in zip(classes, apportion(counts, n), strict=True):
        marked[order[labels[order] == c][:take]] = True
    return marked


def check_split(
    train: tuple[AnyArray, AnyArray], test: tuple[AnyArray, AnyArray], flag: str, names: tuple[str, str, str, str]
) -> ArrayDataset:
    """Return checked training and test examples. `names` are the arrays' names in messages."""
    x_train, x_test = check_inputs(train[0], f"{flag}: {names[0]}"), check_inputs(test[0], f"{flag}: {names[2]}")
    if (x_train.dtype, x_train.shape[1:]) != (x_test.dtype, x_test.shape[1:]):
        raise BadInput(
            f"{flag}: {names[0]} is {describe_array(x_train)} and {names[2]} {describe_array(x_test)};"
            " type and shape must be the same"
        )
    y_train = check_labels(train[1], len(x_train), f"{flag}: {names[1]}")
    return ArrayDataset(x_train, y_train, x_test, check_labels(test[1], len(x_test), f"{flag}: {names[3]}"))


def check_classes(arrays: ArrayDataset, classes: int, flag: str, name: str) -> ArrayDataset:
    """Return the same arrays. Raise BadInput if a label is not among the classes of the set."""
    largest = int(max(arrays.y_train.max(), arrays.y_test.max()))
    if largest >= classes:
        raise BadInput(f"{flag} has the label {largest}; {name} has the classes 0 … {classes - 1}")
    return arrays


def check_shape(arrays: ArrayDataset, shape: tuple[int, int, int], flag: str, name: str) -> ArrayDataset:
    """Return the same arrays. Raise BadInput if the images do not have this height, width and number of channels."""
    found = arrays.x_train.shape[1:]
    if found not in (shape, shape if shape[2] > 1 else shape[:2]):
        wants = "×".join(map(str, shape)) if shape[2] > 1 else f"{shape[0]}×{shape[1]}, gray"
        raise BadInput(
            f"{flag} has images of {'×'.join(map(str, found))}; those of {name} are {wants}. Other images are a task of"
            " their own: call the file otherwise, any NAME.npz in TARRY_DATA is --task NAME"
        )
    return arrays


def describe_array(x: AnyArray) -> str:
    return f"{x.dtype} {'×'.join(map(str, x.shape))}"


def check_inputs(x: AnyArray, where: str) -> AnyArray:
    """Return images as uint8 or finite numbers as float32, one per example."""
    if x.ndim < 2 or x.size == 0:
        raise BadInput(f"{where} is {describe_array(x)}; expected one row or image an example")
    if x.dtype == np.uint8:
        if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] > _MOST_CHANNELS):
            raise BadInput(
                f"{where} is {describe_array(x)}; uint8 inputs are images, N×H×W or N×H×W×C with at most"
                f" {_MOST_CHANNELS} channels. Save other inputs as float32."
            )
        return x
    if x.dtype.kind != "f":
        raise BadInput(f"{where} is {describe_array(x)}; expected images as uint8 or other inputs as float32")
    if not np.isfinite(x).all() or np.abs(x).max() > np.finfo(np.float32).max:
        raise BadInput(f"{where} holds NaN, infinite or too large numbers")
    return np.ascontiguousarray(x, np.float32)


def check_labels(y: AnyArray, n: int, where: str) -> Labels:
    """Return one class for each of `n` examples."""
    found = whole_numbers(y, n, where)
    if found.max() >= _MOST_CLASSES:
        raise BadInput(f"{where} goes up to {found.max()}; labels are 0 … classes − 1, at most {_MOST_CLASSES} classes")
    return found


def whole_numbers(a: AnyArray, n: int, where: str) -> Labels:
    """Return one integer from 0 up for each of `n` examples. N×1 is accepted like N."""
    a = a[:, 0] if a.shape == (n, 1) else a
    if a.shape != (n,):
        raise BadInput(f"{where} is {describe_array(a)}; expected one number for each of the {n} examples")
    # above 2^53 a float is not one exact integer
    if a.dtype.kind not in "biuf" or (a.dtype.kind == "f" and not ((a == np.floor(a)) & (np.abs(a) < 2.0**53)).all()):
        raise BadInput(f"{where} ({a.dtype}) must hold whole numbers")
    least, most = int(a.min()), int(a.max())
    if least < 0 or most >= 2**63:
        raise BadInput(f"{where} holds {least if least < 0 else most}; expected whole numbers from 0 up, below 2^63")
    return a.astype(np.int64)
