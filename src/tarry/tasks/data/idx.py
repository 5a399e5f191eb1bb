"""MNIST's own files (LeCun, Cortes, Burges): two zero bytes, 8 for bytes, the number of axes, their lengths, the bytes.

Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) has the same four files, so it needs a folder of its own.
"""

from __future__ import annotations

import gzip
import struct
from io import BufferedReader
from math import prod
from pathlib import Path

import numpy as np

from ...core.errors import BadInput
from .arrays import AnyArray, ArrayDataset, check_split
from .npz import UNREADABLE

__all__ = ["MARKS", "read_idx"]

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
#: either of them says that the four files lie in a folder
MARKS = (f"{_FILES[0]}.gz", _FILES[0], _FILES[0].replace("-idx", ".idx"))
_MOST_BYTES = 4 << 30
_CHUNK = 1 << 24
_GZIP = b"\x1f\x8b"


def read_idx(path: Path, flag: str) -> ArrayDataset:
    """Return the examples of the four files of a folder, each compressed by gzip or not, independent of its name."""
    a, b, c, d = (_file(path, name, axes, flag) for name, axes in zip(_FILES, (3, 1, 3, 1), strict=True))
    return check_split((a, b), (c, d), flag, _FILES)


def _file(folder: Path, name: str, axes: int, flag: str) -> AnyArray:
    names = [f"{base}{end}" for base in (name, name.replace("-idx", ".idx")) for end in (".gz", "")]
    path = next((folder / n for n in names if (folder / n).is_file()), None)
    if path is None:
        raise BadInput(f"{flag}: lacks {name}.gz (the four files belong together: {', '.join(_FILES)})")
    try:
        with path.open("rb") as raw:
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            return _array(gzip.GzipFile(fileobj=raw) if packed else raw, axes)
    except UNREADABLE as e:
        raise BadInput(f"{flag}: {path.name} is no idx file of bytes ({type(e).__name__}: {e})") from e


def _array(file: gzip.GzipFile | BufferedReader, axes: int) -> AnyArray:
    header = file.read(4 + 4 * axes)
    if len(header) < 4 + 4 * axes or header[:4] != bytes([0, 0, 8, axes]):
        raise ValueError(f"begins with {header[:4].hex(' ') or 'nothing'}, not 00 00 08 {axes:02x}")
    shape = struct.unpack(f">{axes}I", header[4:])
    claimed = prod(shape)
    if claimed > _MOST_BYTES:
        raise ValueError(f"claims {claimed:,} bytes; at most {_MOST_BYTES:,} are read")
    content = bytearray()
    while len(content) < claimed and (chunk := file.read(min(_CHUNK, claimed - len(content)))):
        content += chunk  # grows with what is there: the claim itself allocates nothing
    if len(content) != claimed or file.read(1):
        raise ValueError(f"claims {claimed:,} bytes and holds {'more' if len(content) == claimed else len(content)}")
    return np.frombuffer(content, np.uint8).reshape(shape)
