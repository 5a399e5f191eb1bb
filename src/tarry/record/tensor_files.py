"""Files of arrays that are written without copies: safetensors files, and large tensors with a file each.

    FOLDER/SHA256.npy     a tensor; the name is the sha256 of the file

`TensorFiles` writes a tensor once, however many checkpoints hold it. It remembers the digests of tensors by identity:
a tensor that has not changed is neither read nor written again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import DamagedFile
from ..core.storage import files_in, open_regular, storage_errors
from .storage import make_folder, open_atomic

__all__ = ["TensorFiles", "array_of", "read_tensor_file", "write_safetensors"]

Array = npt.NDArray[Any]

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_ALIGNED = 8  # bytes: the data of a safetensors file begin at a multiple of this


def array_of(tensor: Tensor) -> Array:
    """Return the numbers of a tensor; they are shared if it is contiguous and on the CPU."""
    numbers: Array = tensor.detach().cpu().contiguous().numpy()
    return numbers


def write_safetensors(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays to a safetensors file; it is on disk when this returns."""
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        array, start = arrays[name], end
        end += array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with open_atomic(path) as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            f.write(_bytes_of(arrays[name]))


class TensorFiles:
    """The large tensors of the checkpoints in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._known: dict[int, tuple[weakref.ref[Tensor], int, str]] = {}  # by id: the tensor, its version, its digest

    def put(self, tensor: Tensor) -> str:
        """Write a tensor unless its file is there; return the digest of the file."""
        digest = self._known_digest(tensor)
        if digest is None or not self._path(digest).is_file():
            array = array_of(tensor)
            header = _npy_header(array)
            digest = _sha256(header, array)
            if not self._path(digest).is_file():
                make_folder(self.folder)
                with open_atomic(self._path(digest)) as f:
                    f.write(header)
                    f.write(_bytes_of(array))
            self._known[id(tensor)] = weakref.ref(tensor), tensor._version, digest
        return digest

    def _known_digest(self, tensor: Tensor) -> str | None:
        ref, version, digest = self._known.get(id(tensor), (None, -1, None))
        return digest if ref is not None and ref() is tensor and version == tensor._version else None

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.npy"

    def clean(self, used: Collection[str]) -> None:
        """Delete the files of all tensors but those in `used`, and what a killed process has left."""
        self._known = {i: entry for i, entry in self._known.items() if entry[0]() is not None and entry[2] in used}
        with storage_errors(self.folder, "cleaned"):
            for path in files_in(self.folder):
                if path.suffix != ".npy" or path.stem not in used:
                    path.unlink()


def read_tensor_file(folder: Path, digest: str) -> Tensor:
    """Return the tensor in a file; raise DamagedFile if the file is gone or not what was written."""
    path = folder / f"{digest}.npy"
    if not path.is_file():
        raise DamagedFile(f"its tensor {path} is gone")
    with storage_errors(path, "read"), open_regular(path) as f:
        content = torch.empty(os.fstat(f.fileno()).st_size, dtype=torch.uint8)
        numbers: Any = content.numpy()
        complete = f.readinto(memoryview(numbers)) == numbers.nbytes
    if not complete or hashlib.sha256(memoryview(numbers)).hexdigest() != digest:
        raise DamagedFile(f"its tensor {path} is not what was written")
    head = io.BytesIO(numbers[:_HEADER].tobytes())
    np.lib.format.read_magic(head)
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    return torch.from_numpy(numbers[head.tell() :].view(dtype).reshape(shape))


_HEADER = 1024  # bytes that the header of an .npy file may take


def _npy_header(array: Array) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
    return out.getvalue()


def _sha256(header: bytes, array: Array) -> str:
    digest = hashlib.sha256(header)
    digest.update(_bytes_of(array))
    return digest.hexdigest()


def _bytes_of(array: Array) -> memoryview:
    """Return the bytes of an array, shared if it is contiguous."""
    numbers: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(numbers)
