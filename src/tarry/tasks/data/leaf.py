"""LEAF's json files (Caldas et al. 2018): {users: [...], num_samples: [...], user_data: {user: {x: [...], y: [...]}}}.

FEMNIST: x is a row of 784 numbers from 0 (ink) to 1 (paper), y one of 62 classes (digits, capitals, small letters); the
writer is the natural group. `train/` and `test/` are what LEAF's preprocess.sh leaves; where there is only
`all_data/`, a fixed stratified fifth is the test set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import BadInput
from ...core.slow_read import SlowReadNotice
from .archives import read_files
from .arrays import AnyArray, ArrayDataset, Labels, check_labels, check_split, hold_out

__all__ = ["read_femnist"]

_SIDE = 28
_MOST_BYTES = 2 << 30

LeafExamples = tuple[AnyArray, Labels, Labels]  # images, labels, writers


def read_femnist(path: Path, flag: str) -> ArrayDataset:
    """Return the examples of train/*.json and test/*.json, or of all_data/*.json, with writers as groups."""
    writers: dict[str, int] = {}
    train, test = _part(path, "train", writers, flag), _part(path, "test", writers, flag)
    if train is not None and test is not None:
        arrays = check_split(train[:2], test[:2], flag, ("train x", "train y", "test x", "test y"))
        return ArrayDataset(arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test, train[2])
    everything = _part(path, "all_data", writers, flag)
    if everything is None:
        raise BadInput(f"{flag}: has no .json files in train/ and test/ (or all_data/), as LEAF's preprocess.sh leaves")
    x, y, groups = everything
    y = check_labels(y, len(x), f"{flag}: y")
    held = hold_out(y, max(1, len(y) // 5))
    return ArrayDataset(x[~held], y[~held], x[held], y[held], groups[~held])


def _part(path: Path, part: str, writers: dict[str, int], flag: str) -> LeafExamples | None:
    def wanted(name: str) -> bool:
        return name.endswith(".json") and name.startswith(f"{part}/")

    rows: list[LeafExamples] = []
    notice, done = SlowReadNotice(flag), 0
    for name, content in read_files(path, wanted, flag, most=_MOST_BYTES):
        for user, x, y in _users(content, f"{flag}: {name}"):
            number = writers.setdefault(user, len(writers))
            rows.append((x, y, np.full(len(y), number, np.int64)))
            notice(done := done + len(y))
    if not rows:
        return None
    x, y, groups = (np.concatenate(column) for column in zip(*rows, strict=True))
    return x, y, groups


def _users(content: bytes, where: str) -> Iterator[tuple[str, AnyArray, Labels]]:
    try:
        loaded = json.loads(content)
        users, data, counts = loaded["users"], loaded["user_data"], loaded["num_samples"]
        pairs = [(str(u), data[u]["x"], data[u]["y"], n) for u, n in zip(users, counts, strict=True)]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise BadInput(f"{where}: is no LEAF file of users, num_samples and user_data ({type(e).__name__}: {e})") from e
    for user, x, y, n in pairs:
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == n:
            raise BadInput(f"{where}: user {user} does not have {n} x and as many y")
        if n:
            yield user, _pixels(x, f"{where}: user {user}"), _classes(y, f"{where}: user {user}")


def _pixels(x: list[Any], where: str) -> AnyArray:
    try:
        rows = np.array(x, np.float32)
    except (ValueError, TypeError):
        rows = np.zeros(0, np.float32)
    if rows.ndim != 2 or rows.shape[1] != _SIDE * _SIDE or not ((rows >= 0) & (rows <= 1)).all():
        raise BadInput(f"{where}: x wants rows of {_SIDE * _SIDE} numbers from 0 to 1")
    return np.rint(rows * 255).astype(np.uint8).reshape(-1, _SIDE, _SIDE)


def _classes(y: list[Any], where: str) -> Labels:
    if not all(type(v) is int and 0 <= v < 2**31 for v in y):
        raise BadInput(f"{where}: y wants whole numbers from 0 up")
    return np.array(y, np.int64)
