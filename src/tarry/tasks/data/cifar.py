"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in their original formats: pickled batches, or the binary version.

A batch is a pickle of {data: N×3072 bytes (red, green, blue plane, row by row), labels or fine_labels: [N numbers]}. It
is read by `safe_pickle.py`, which executes nothing. A row of the binary version is a label (in CIFAR-100 the coarse
one, then the fine one) and the same 3,072 bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...core.errors import BadInput
from .archives import named_files
from .arrays import AnyArray, ArrayDataset, check_split, describe_array
from .safe_pickle import UnsafePickle, safe_unpickle

__all__ = ["read_binary", "read_pickles"]

_MOST_BYTES = 512 << 20
_SIDE, _PIXELS = 32, 3072
_TRAIN10 = tuple(f"data_batch_{i}" for i in range(1, 6))
_NAMES = ("training images", "training labels", "test images", "test labels")

CifarBatch = tuple[AnyArray, AnyArray]  # rows of 3,072 bytes, labels


def read_pickles(path: Path, flag: str, *, fine: bool = False) -> ArrayDataset:
    """Return the examples of `cifar-10-batches-py` or (`fine`) `cifar-100-python`, a folder or an archive."""
    train, test = (("train",), "test") if fine else (_TRAIN10, "test_batch")
    found = named_files(path, (*train, test), flag, most=_MOST_BYTES)
    key = "fine_labels" if fine else "labels"
    return _arrays(
        [_batch(found[name], key, f"{flag}: {name}") for name in train],
        _batch(found[test], key, f"{flag}: {test}"),
        flag,
    )


def read_binary(path: Path, flag: str, *, fine: bool = False) -> ArrayDataset:
    """Return the examples of `cifar-10-batches-bin` or (`fine`) `cifar-100-binary`, a folder or an archive."""
    train, test = (("train.bin",), "test.bin") if fine else (tuple(f"{n}.bin" for n in _TRAIN10), "test_batch.bin")
    found = named_files(path, (*train, test), flag, most=_MOST_BYTES)
    first = 2 if fine else 1
    return _arrays(
        [_rows(found[name], first, f"{flag}: {name}") for name in train],
        _rows(found[test], first, f"{flag}: {test}"),
        flag,
    )


def _batch(content: bytes, key: str, where: str) -> CifarBatch:
    try:
        named = safe_unpickle(content)
    except UnsafePickle as e:
        raise BadInput(f"{where}: is no pickled CIFAR batch: {e}") from e
    if "data" not in named or key not in named:
        raise BadInput(f"{where}: wants data and {key}; it has {', '.join(named) or 'neither'}")
    x, y = named["data"], named[key]
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != _PIXELS or x.dtype != np.uint8 or not len(x):
        raise BadInput(
            f"{where}: data is {describe_array(x) if isinstance(x, np.ndarray) else 'no array'};"
            f" expected N×{_PIXELS} bytes"
        )
    if isinstance(y, list) and all(type(v) is int and abs(v) < 2**31 for v in y):
        y = np.array(y, np.int64)
    if not isinstance(y, np.ndarray) or y.shape != (len(x),):
        raise BadInput(f"{where}: {key} is no list of {len(x)} whole numbers, one for each image")
    return x, y


def _rows(content: bytes, first: int, where: str) -> CifarBatch:
    width = first + _PIXELS
    if not content or len(content) % width:
        raise BadInput(f"{where}: holds {len(content):,} bytes; expected rows of {width:,}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, width)
    return rows[:, first:], rows[:, first - 1]


def _arrays(train: list[CifarBatch], test: CifarBatch, flag: str) -> ArrayDataset:
    x, y = (np.concatenate(column) for column in zip(*train, strict=True))
    return check_split((_images(x), y), (_images(test[0]), test[1]), flag, _NAMES)


def _images(rows: AnyArray) -> AnyArray:
    """Return planes stored one after the other as pixels: N×H×W×C."""
    return np.ascontiguousarray(rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))
