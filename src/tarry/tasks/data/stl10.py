"""STL-10 (Coates, Lee, Ng 2011), binary version: 96×96 pixels, an image is three planes, each stored column by column.

train_X.bin, train_y.bin (5,000 images, labels 1 … 10), test_X.bin, test_y.bin (8,000), unlabeled_X.bin (100,000).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...core.errors import BadInput
from .archives import named_files
from .arrays import AnyArray, ArrayDataset, check_split

__all__ = ["UNLABELED", "read_stl10", "read_unlabeled"]

UNLABELED = "unlabeled_X.bin"
_SIDE = 96
_IMAGE = 3 * _SIDE * _SIDE
_MOST_BYTES = 1 << 30
_MAX_UNLABELED_BYTES = 4 << 30
_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")


def read_stl10(path: Path, flag: str) -> ArrayDataset:
    """Return the labeled parts of `stl10_binary`, a folder or an archive."""
    found = named_files(path, _FILES, flag, most=_MOST_BYTES)
    parts = []
    for part in ("train", "test"):
        x = _images(np.frombuffer(found[f"{part}_X.bin"], np.uint8), f"{flag}: {part}_X.bin")
        y = np.frombuffer(found[f"{part}_y.bin"], np.uint8)
        if y.size and (y.min() < 1 or y.max() > 10):
            raise BadInput(f"{flag}: {part}_y.bin holds {y.min()} … {y.max()}; labels are 1 … 10")
        parts.append((x, y.astype(np.int64) - 1))
    return check_split(parts[0], parts[1], flag, _FILES)


def read_unlabeled(path: Path, flag: str, chosen: Callable[[int], list[int]]) -> npt.NDArray[np.uint8]:
    """Return images of the unlabeled part, N×H×W×C. `chosen` maps their number to the indices to read."""
    file = path / UNLABELED
    if file.is_file():
        size = file.stat().st_size
        everything: AnyArray = np.memmap(file, np.uint8, "r") if size else np.zeros(0, np.uint8)
    else:
        everything = np.frombuffer(
            named_files(path, (UNLABELED,), flag, most=_MAX_UNLABELED_BYTES)[UNLABELED], np.uint8
        )
    _check(everything, f"{flag}: {UNLABELED}")
    rows = everything.reshape(-1, _IMAGE)
    return _images(np.array(rows[chosen(len(rows))]).ravel(), f"{flag}: {UNLABELED}")


def _check(content: AnyArray, where: str) -> None:
    if not content.size or content.size % _IMAGE:
        raise BadInput(f"{where}: holds {content.size:,} bytes; expected images of {_IMAGE:,}")


def _images(content: AnyArray, where: str) -> npt.NDArray[np.uint8]:
    _check(content, where)
    return np.ascontiguousarray(content.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 3, 2, 1))
