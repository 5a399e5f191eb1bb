"""Arrays from Parquet files: lists of numbers, or image files as data sets of the Hugging Face hub have them.

x, image or img      a list of numbers, or a JPEG or PNG image: bytes, or a table with `bytes`
y or label           the class
split                optional: train, test; validation joins training
is_test, group or subject   optional, as in an .npz file
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import BadInput, first_line
from ...core.optional_import import optional_import
from ...core.parquet import parquet_columns, parquet_rows
from ...core.slow_read import SlowReadNotice
from .arrays import AnyArray

__all__ = ["holds_arrays", "parquet_arrays"]

_INPUTS, _LABELS, _OTHERS = ("x", "image", "img"), ("y", "label"), ("is_test", "group", "subject")
_SPLITS = {"train": "train", "validation": "train", "test": "test"}
_MOST_BYTES = 8 << 30
_MOST_IMAGE = 8 << 20  # bytes of one image file


def holds_arrays(path: Path) -> bool:
    """Return whether a Parquet file has a column of inputs and none of texts; False if that cannot be found out."""
    try:
        columns = parquet_columns(path, str(path))
    except BadInput:
        return False
    return "text" not in columns and "s1" not in columns and any(name in columns for name in _INPUTS)


def parquet_arrays(path: Path, flag: str) -> dict[str, AnyArray]:
    """Return the arrays of a file under the names that they have in an .npz file."""
    columns = parquet_columns(path, flag)
    x, y = (_one_of(names, columns, flag) for names in (_INPUTS, _LABELS))
    inputs, rows = [], []
    notice = SlowReadNotice(f"{flag}: rows")
    for i, row in enumerate(parquet_rows(path, flag, _MOST_BYTES), 1):
        inputs.append(_input(row[x], f"{flag}: row {i}: column {x!r}"))
        rows.append({name: row[name] for name in (y, "split", *_OTHERS) if name in columns})
        notice(i)
    if len({(a.shape, a.dtype) for a in inputs}) > 1:
        raise BadInput(f"{flag}: its inputs have several shapes; a task wants one")
    if not inputs:
        raise BadInput(f"{flag}: has no rows")
    arrays = {"x": np.stack(inputs), **{name: _numbers(rows, name, flag) for name in rows[0] if name != "split"}}
    arrays["y"] = arrays.pop(y)
    return _by_split(arrays, [row["split"] for row in rows], flag) if "split" in columns else arrays


def _one_of(names: tuple[str, ...], columns: list[str], flag: str) -> str:
    found = [name for name in names if name in columns]
    if len(found) != 1:
        raise BadInput(f"{flag}: wants one column {' or '.join(names)}; it has {', '.join(columns)}")
    return found[0]


def _input(value: Any, where: str) -> AnyArray:
    """Return an image as uint8, or numbers as float32."""
    content = value.get("bytes") if isinstance(value, Mapping) else value
    if isinstance(content, bytes):
        return _image(content, where)
    try:
        return np.asarray(content, np.float32)
    except (TypeError, ValueError) as e:
        raise BadInput(f"{where} holds no image and no list of numbers ({first_line(e)})") from e


def _image(content: bytes, where: str) -> AnyArray:
    if len(content) > _MOST_IMAGE:
        raise BadInput(f"{where}: an image of {len(content):,} bytes; at most {_MOST_IMAGE:,} are read")
    with optional_import("pillow"):
        from PIL import Image
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns of an image that claims to be enormous
            with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
                return np.asarray(image if image.mode == "L" else image.convert("RGB"), np.uint8)
    except (OSError, ValueError, SyntaxError, Warning, Image.DecompressionBombError) as e:
        raise BadInput(f"{where}: is no JPEG or PNG image that can be read ({first_line(e)})") from e


def _numbers(rows: list[dict[str, Any]], name: str, flag: str) -> AnyArray:
    values = [row[name] for row in rows]
    if not all(isinstance(value, int | float) for value in values):
        raise BadInput(f"{flag}: column {name!r} must hold whole numbers in all rows")
    return np.asarray(values)


def _by_split(arrays: dict[str, AnyArray], splits: list[Any], flag: str) -> dict[str, AnyArray]:
    """Return the arrays of training and test examples, and the groups of the training examples."""
    if strange := [split for split in splits if split not in _SPLITS]:
        raise BadInput(f"{flag}: has the split {strange[0]!r}; expected {', '.join(_SPLITS)}")
    part = np.array([_SPLITS[split] for split in splits])
    if len(set(part)) < 2:
        raise BadInput(f"{flag}: all rows are of the split {splits[0]!r}; it wants train and test")
    found = {f"{name}_{kind}": arrays[name][part == kind] for name in ("x", "y") for kind in ("train", "test")}
    return found | {name: arrays[name][part == "train"] for name in ("group", "subject") if name in arrays}
