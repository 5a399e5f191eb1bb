"""Arrays from .npz files, checked before training.

Three layouts are read:
    x_train, y_train, x_test, y_test [, subject or group]
                                           the split is given; subject or group belongs to the training examples
    x, y [, subject or group] [, is_test]  one table; without is_test a fixed stratified fifth is the test set
    train_images, train_labels, test_images, test_labels [, val_images, val_labels]
                                           MedMNIST's (Yang et al. 2023); labels N×1; validation joins training
A Parquet file has such a table or split, too (parquet_arrays).
Nothing is unpickled. Claimed sizes are checked against the archive before memory is allocated, at most 8 GiB an array.
"""

from __future__ import annotations

import io
import lzma
import tokenize
import zipfile
import zlib
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from ...core.errors import BadInput
from ...core.storage import PACKED, open_input, read_input
from .arrays import (
    AnyArray,
    ArrayDataset,
    Labels,
    check_inputs,
    check_labels,
    check_split,
    describe_array,
    hold_out,
    whole_numbers,
)
from .parquet_arrays import parquet_arrays

__all__ = ["UNREADABLE", "array_of", "read_image_npz", "read_npz", "single_array"]

_SPLIT = ("x_train", "y_train", "x_test", "y_test")
_MED = ("train_images", "train_labels", "test_images", "test_labels")
_WANTED = {*_SPLIT, *_MED, "val_images", "val_labels", "x", "y", "group", "subject", "is_test"}
_MOST_BYTES = 8 << 30
#: exceptions that a truncated file or another format may cause
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,  # an encrypted or unknown kind of member
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
_ODD_HEADER = (TypeError, SyntaxError, tokenize.TokenError)  # what numpy may raise on one besides


def read_npz(path: Path, flag: str) -> ArrayDataset:
    """Return the arrays of a file. Raise BadInput, beginning with `flag`, if something is wrong with it."""
    arrays, names = _load(path, flag)
    if all(k in arrays for k in _SPLIT):
        a, b, c, d = (arrays[k] for k in _SPLIT)
        return _with_groups(check_split((a, b), (c, d), flag, _SPLIT), arrays, flag)
    if all(k in arrays for k in _MED):
        return _with_groups(_medmnist(arrays, flag), arrays, flag)
    if "x" in arrays and "y" in arrays:
        return _from_table(arrays, flag)
    raise BadInput(f"{flag}: wants the arrays {', '.join(_SPLIT)}, or x and y; it has {', '.join(names) or 'none'}")


def _with_groups(a: ArrayDataset, arrays: dict[str, AnyArray], flag: str) -> ArrayDataset:
    """Return the task with the natural groups of the training examples, if the file has them."""
    return replace(a, groups=_groups(arrays, len(a.x_train), f"{flag}: training examples'"))


def _groups(arrays: dict[str, AnyArray], n: int, where: str) -> Labels | None:
    name = next((k for k in ("group", "subject") if k in arrays), None)
    return None if name is None else whole_numbers(arrays[name], n, f"{where} {name}")


def _load(path: Path, flag: str) -> tuple[dict[str, AnyArray], list[str]]:
    """Return the arrays that are used, and the names of all arrays."""
    if not path.is_file():
        raise BadInput(f"{flag}: there is no such file. Task 'digits' needs no download.")
    if path.suffix == ".parquet":
        arrays = parquet_arrays(path, flag)
        return arrays, list(arrays)
    try:
        with _open(path, flag) as file:  # numpy leaves a torn archive open when it opens the file itself
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise BadInput(f"{flag}: holds a single array; expected an .npz archive of named ones")
            with zipfile.ZipFile(file) as z:
                members = {i.filename.removesuffix(".npy"): i for i in z.infolist()}
                return {k: array_of(z, i) for k, i in members.items() if k in _WANTED}, list(members)
    except BadInput:
        raise  # a ValueError, too
    except (*UNREADABLE, *_ODD_HEADER) as e:
        raise BadInput(f"{flag}: is not a plain .npz archive of numbers ({type(e).__name__}: {e})") from e


def _open(path: Path, flag: str) -> IO[bytes]:
    """Return the file, unpacked to memory if its name ends in .gz or .xz."""
    if path.name.endswith(PACKED):
        return io.BytesIO(read_input(path, flag, _MOST_BYTES))
    return open_input(path, flag)


def array_of(z: zipfile.ZipFile, info: zipfile.ZipInfo) -> AnyArray:
    """Return one array of the archive. Its claimed size is checked before allocation."""
    with z.open(info) as member:
        _check_header(member, info.filename, info.file_size)
    with z.open(info) as member:
        array: AnyArray = npy.read_array(member, allow_pickle=False)
        return array


def single_array(file: IO[bytes], name: str, size: int) -> AnyArray:
    """Return the array of an open .npy file of `size` bytes. Its claimed size is checked before allocation."""
    _check_header(file, name, size)
    file.seek(0)
    array: AnyArray = npy.read_array(file, allow_pickle=False)
    return array


def _check_header(file: IO[bytes], name: str, size: int) -> None:
    """Raise ValueError if the array is no plain one of numbers, or not as large as the file."""
    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(file)
    else:
        raise ValueError(f"{name} has the .npy version {version}; versions 1 and 2 are read")
    if dtype.hasobject:
        raise ValueError(f"Object arrays cannot be read, and {name} is one")
    claimed = prod(shape) * dtype.itemsize
    if claimed > _MOST_BYTES:
        raise ValueError(f"{name} claims {claimed:,} bytes of numbers; at most {_MOST_BYTES:,} are read")
    if claimed + file.tell() != size:
        raise ValueError(f"{name} claims {claimed:,} bytes of numbers and holds {size:,} in all")


def read_image_npz(path: Path, flag: str) -> ArrayDataset:
    """Return the arrays of a file as `read_npz` does. Raise BadInput if the inputs are not images."""
    arrays = read_npz(path, flag)
    if arrays.x_train.dtype != np.uint8:
        raise BadInput(
            f"{flag}: its inputs are {describe_array(arrays.x_train)}; expected images as uint8 (0 … 255), N×H×W or"
            f" N×H×W×C. Other inputs are read as they are by --task npz --task.path {path}"
        )
    return arrays


def _medmnist(arrays: dict[str, AnyArray], flag: str) -> ArrayDataset:
    names = [*_MED, *(["val_images", "val_labels"] if {"val_images", "val_labels"} <= arrays.keys() else [])]
    flat = {}
    for name in names[1::2]:
        y = arrays[name]
        if y.ndim == 2 and y.shape[1] > 1:
            raise BadInput(f"{flag}: {name} is {describe_array(y)}: several labels an image, and a task wants one")
        flat[name] = y.reshape(-1) if y.ndim == 2 else y
    x, y = arrays["train_images"], flat["train_labels"]
    if "val_images" in names:
        # each before they are joined, so that the right one is named
        x, val = (check_inputs(arrays[name], f"{flag}: {name}") for name in ("train_images", "val_images"))
        if x.shape[1:] != val.shape[1:] or x.dtype != val.dtype:
            raise BadInput(
                f"{flag}: train_images is {describe_array(x)} and val_images {describe_array(val)};"
                " type and shape must be the same"
            )
        check_labels(y, len(x), f"{flag}: train_labels")
        check_labels(flat["val_labels"], len(val), f"{flag}: val_labels")
        x, y = np.concatenate([x, val]), np.concatenate([y, flat["val_labels"]])
    return check_split((x, y), (arrays["test_images"], flat["test_labels"]), flag, _MED)


def _from_table(arrays: dict[str, AnyArray], flag: str) -> ArrayDataset:
    x = check_inputs(arrays["x"], f"{flag}: x")
    y = check_labels(arrays["y"], len(x), f"{flag}: y")
    groups = _groups(arrays, len(x), f"{flag}:")
    if "is_test" in arrays:
        marks = whole_numbers(arrays["is_test"], len(x), f"{flag}: is_test")
        if set(marks.tolist()) != {0, 1}:
            raise BadInput(f"{flag}: is_test must mark some examples with 1 (test) and some with 0 (training)")
        test = marks == 1
    elif len(x) < 5:
        raise BadInput(f"{flag}: {len(x)} examples are too few to hold out a test set; give is_test")
    else:
        test = hold_out(y, len(x) // 5)
    return ArrayDataset(x[~test], y[~test], x[test], y[test], None if groups is None else groups[~test])
