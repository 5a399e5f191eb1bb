"""Arrays from .npz files, checked before anything is trained on them.

Two forms are read:
    x_train, y_train, x_test, y_test      the split is given
    x, y [, subject or group] [, is_test]  one table; without is_test a fixed stratified fifth is the test set
Inputs are images (uint8, N×H×W or N×H×W×C) or floating-point numbers of any shape; labels are 0 … classes − 1.
Nothing is unpickled.
"""

from __future__ import annotations

import lzma
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import BadInput
from ..core.rng import Stream, key, permutation
from .apportion import apportion

__all__ = ["Arrays", "data_file", "files_in_data_folder", "hold_out", "read_npz", "where_data_is"]

_SPLIT = ("x_train", "y_train", "x_test", "y_test")
_MOST_CLASSES = 100_000  # a larger label is an identifier or a measurement, and its output layer would fill the memory
_MOST_CHANNELS = 4
_UNREADABLE = (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Arrays:
    """A data set as read: inputs uint8 (images) or float32, labels, the natural group of each training example."""

    x_train: Array
    y_train: Labels
    x_test: Array
    y_test: Labels
    groups: Labels | None = None


def _data_folder() -> Path | None:
    text = os.environ.get("TARRY_DATA", "")
    return Path(text).expanduser() if text else None


def files_in_data_folder() -> dict[str, Path]:
    """The .npz files of TARRY_DATA by name; none when it is unset or no folder."""
    folder = _data_folder()
    return {} if folder is None else {p.stem: p for p in sorted(folder.glob("*.npz"))}


def where_data_is() -> str:
    """A sentence on TARRY_DATA: unset, no folder, or what lies there."""
    folder = _data_folder()
    if folder is None:
        return "TARRY_DATA is unset: set it to a folder of .npz files."
    if not folder.is_dir():
        return f"TARRY_DATA={folder} is not a folder: set it to a folder of .npz files."
    return f"TARRY_DATA={folder} holds {', '.join(p.name for p in files_in_data_folder().values()) or 'no .npz files'}."


def data_file(name: str) -> Path:
    """The file `<name>.npz` of TARRY_DATA."""
    found = files_in_data_folder().get(name)
    if found is None:
        raise BadInput(
            f"--task {name}: wants the file {name}.npz (arrays {', '.join(_SPLIT)}). {where_data_is()}"
            " Task 'digits' needs no download."
        )
    return found


def hold_out(labels: Labels, n: int) -> npt.NDArray[np.bool_]:
    """Marks `n` examples as test set, each class in proportion; always the same ones, whatever the run's seed."""
    order = permutation(key(0, Stream.DATA), len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    marked = np.zeros(len(labels), bool)
    for c, take in zip(classes, apportion(counts, n), strict=True):
        marked[order[labels[order] == c][:take]] = True
    return marked


def read_npz(path: Path, *, flag: str) -> Arrays:
    """The arrays of a file, or BadInput that begins with `flag` and says what is wrong with it."""
    arrays = _load(path, flag)
    if all(k in arrays for k in _SPLIT):
        x_train, x_test = (_inputs(arrays[k], f"{flag}: {k}") for k in ("x_train", "x_test"))
        if (x_train.dtype, x_train.shape[1:]) != (x_test.dtype, x_test.shape[1:]):
            raise BadInput(f"{flag}: x_train is {_form(x_train)} and x_test {_form(x_test)}; they must be alike")
        y_train = _labels(arrays["y_train"], len(x_train), f"{flag}: y_train")
        return Arrays(x_train, y_train, x_test, _labels(arrays["y_test"], len(x_test), f"{flag}: y_test"))
    if "x" in arrays and "y" in arrays:
        return _from_table(arrays, flag)
    raise BadInput(f"{flag}: wants the arrays {', '.join(_SPLIT)}, or x and y; it has {', '.join(arrays) or 'none'}")


def _load(path: Path, flag: str) -> dict[str, Array]:
    wanted = {*_SPLIT, "x", "y", "group", "subject", "is_test"}
    if not path.is_file():
        raise BadInput(f"{flag}: there is no such file. Task 'digits' needs no download.")
    try:
        with path.open("rb") as file:  # numpy leaves a torn archive open when it opens the file itself
            z = np.load(file, allow_pickle=False)
            if isinstance(z, np.ndarray):
                raise BadInput(f"{flag}: holds a single array; wants an .npz archive of named ones")
            return {k: z[k] for k in z.files if k in wanted}
    except _UNREADABLE as e:
        raise BadInput(f"{flag}: is not a plain .npz archive of numbers ({type(e).__name__}: {e})") from e


def _from_table(arrays: dict[str, Array], flag: str) -> Arrays:
    x = _inputs(arrays["x"], f"{flag}: x")
    y = _labels(arrays["y"], len(x), f"{flag}: y")
    group = next((k for k in ("group", "subject") if k in arrays), None)
    groups = None if group is None else _whole(arrays[group], len(x), f"{flag}: {group}")
    if "is_test" in arrays:
        marks = _whole(arrays["is_test"], len(x), f"{flag}: is_test")
        if set(marks.tolist()) != {0, 1}:
            raise BadInput(f"{flag}: is_test must mark some examples with 1 (test) and some with 0 (training)")
        test = marks == 1
    elif len(x) < 5:
        raise BadInput(f"{flag}: {len(x)} examples are too few to hold out a test set; give is_test")
    else:
        test = hold_out(y, len(x) // 5)
    return Arrays(x[~test], y[~test], x[test], y[test], None if groups is None else groups[~test])


def _form(x: Array) -> str:
    return f"{x.dtype} {'×'.join(map(str, x.shape))}"


def _inputs(x: Array, where: str) -> Array:
    if x.ndim < 2 or x.size == 0:
        raise BadInput(f"{where} is {_form(x)}; wants one row or image an example")
    if x.dtype == np.uint8:
        if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] > _MOST_CHANNELS):
            raise BadInput(
                f"{where} is {_form(x)}; uint8 inputs are images, N×H×W or N×H×W×C with at most"
                f" {_MOST_CHANNELS} channels. Save other inputs as float32."
            )
        return x
    if x.dtype.kind != "f":
        raise BadInput(f"{where} is {_form(x)}; wants images as uint8 or other inputs as float32")
    if not np.isfinite(x).all() or np.abs(x).max() > np.finfo(np.float32).max:
        raise BadInput(f"{where} holds NaN, infinite or too large numbers")
    return np.ascontiguousarray(x, np.float32)


def _labels(y: Array, n: int, where: str) -> Labels:
    labels = _whole(y, n, where)
    if labels.max() >= _MOST_CLASSES:
        raise BadInput(
            f"{where} goes up to {labels.max()}; labels are 0 … classes − 1, at most {_MOST_CLASSES} classes"
        )
    return labels


def _whole(a: Array, n: int, where: str) -> Labels:
    """One whole number from 0 up for each of `n` examples."""
    if a.shape != (n,):
        raise BadInput(f"{where} is {_form(a)}; wants one number for each of the {n} examples")
    # beyond 2^53 a float stands for many whole numbers
    if a.dtype.kind not in "biuf" or (a.dtype.kind == "f" and not ((a == np.floor(a)) & (np.abs(a) < 2.0**53)).all()):
        raise BadInput(f"{where} ({a.dtype}) must hold whole numbers")
    out = a.astype(np.int64)
    if out.min() < 0:
        raise BadInput(f"{where} holds {out.min()}; wants whole numbers from 0 up")
    return out
