"""Street View House Numbers, cropped digits (Netzer et al. 2011): X is 32×32×3×N in a MATLAB file, zero is 10 in y."""

from __future__ import annotations

import struct
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np

from ...core.errors import BadInput
from .arrays import AnyArray, ArrayDataset, check_split

__all__ = ["FILES", "read_svhn"]

FILES = ("train_32x32.mat", "test_32x32.mat")
_COMPRESSED = 15
_TRUNCATED = "is truncated in the middle of a variable; get it again"
_MOST_IMAGES = 1_000_000  # the extra part, the largest, has 531,131


def read_svhn(path: Path, flag: str) -> ArrayDataset:
    """Return the examples of train_32x32.mat and test_32x32.mat of a folder."""
    train, test = (_part(path / name, f"{flag}: {name}") for name in FILES)
    return check_split(train, test, flag, ("training X", "training y", "test X", "test y"))


def _part(path: Path, where: str) -> tuple[AnyArray, AnyArray]:
    if not path.is_file():
        raise BadInput(f"{where}: is not there; both {' and '.join(FILES)} are wanted")
    x, y = _variables(path, where)
    if x.dtype != np.uint8 or y.dtype.kind not in "uif" or not np.isfinite(y).all():
        raise BadInput(f"{where}: X is {x.dtype} and y {y.dtype}; expected bytes and numbers")
    if (y != np.floor(y)).any():
        raise BadInput(f"{where}: y must hold whole numbers")
    labels = y.ravel().astype(np.int64)
    if labels.min() < 0 or labels.max() > 10:
        raise BadInput(f"{where}: y holds {labels.min()} … {labels.max()}; digits are 1 … 9, and 10 for zero")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), labels % 10


def _variables(path: Path, where: str) -> tuple[AnyArray, AnyArray]:
    try:
        mat = import_module("scipy.io")
    except ImportError as e:
        raise BadInput(f"{where}: reading it needs scipy, which cannot be imported ({e}): pip install scipy") from e
    try:
        shapes = {name: shape for name, shape, _ in mat.whosmat(path)}  # headers alone: nothing large is made yet
        x, y = shapes.get("X", ()), shapes.get("y", ())
        if len(x) == 4 and x[:3] == (32, 32, 3) and 0 < x[3] <= _MOST_IMAGES and prod(y) == x[3]:
            found = mat.loadmat(path, variable_names=("X", "y"))
            return found["X"], found["y"]
    except Exception as e:  # whatever scipy raises on a torn file
        why = _TRUNCATED if _is_truncated(path) else "is no MATLAB file of version 5 to 7"
        raise BadInput(f"{where}: {why} ({type(e).__name__}: {e})") from e
    if _is_truncated(path):
        raise BadInput(f"{where}: {_TRUNCATED}")
    found_shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items()) or "nothing"
    raise BadInput(f"{where}: wants X, 32×32×3×N, and N numbers y; it has {found_shapes}")


def _is_truncated(path: Path) -> bool:
    """Return whether the file ends before its last variable does (MAT-File Format, level 5).

    After a header of 128 bytes, each variable begins with its kind and length in 8 bytes. Uncompressed variables are
    padded with zeros to a multiple of 8 bytes.
    """
    with path.open("rb") as file:
        order = {b"\0\1IM": "<", b"\1\0MI": ">"}.get(file.read(128)[124:])
        if order is None:
            return False
        size = file.seek(0, 2)
        at = 128
        while at < size:
            file.seek(at)
            tag = file.read(8)
            if len(tag) < 8:
                return True
            kind, length = struct.unpack(f"{order}II", tag)
            at += 8 + length + (0 if kind == _COMPRESSED else -length % 8)
        return at > size
