"""Checkpoints: a plain record in a safetensors file, with tensors as tensors and the rest as JSON in its header.

    FOLDER/N.safetensors           the record of checkpoint N; the last two are kept
    FOLDER/tensors/SHA256.npy      a tensor of 1 MiB or more, until no checkpoint that is kept holds it

So a checkpoint writes only the large tensors that have changed since the one before it. Nothing is pickled. A file is
written under another name, flushed and renamed, and tensors are written before the record that names them. So a kill
leaves the last complete checkpoint; digests detect damage. Tensors that were shared are shared again after loading. A
file that was forged with a digest of its own raises DamagedFile as well when its content does not fit (`fitting`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.client_table import ClientScalars, ClientTable
from ..core.errors import DamagedFile, TarryError, first_line
from ..core.state_tree import StateRecord
from ..core.storage import files_in, storage_errors
from .storage import make_folder, open_regular
from .tensor_files import TensorFiles, array_of, read_tensor_file, write_safetensors

__all__ = ["Checkpoints", "digest_of_record", "fitting", "latest", "load", "write"]

_FORMAT = "tarry-checkpoint-2"  # everything is in one file
_FORMAT_WITH_FILES = "tarry-checkpoint-3"  # large tensors have files of their own
_TENSORS = "tensors"  # the folder of these files, beside the checkpoints
_LARGE = 1 << 20  # bytes of a tensor that gets a file of its own
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEEP = 2
#: what reading raises where a record lacks something, or has another type or shape (numpy lacks bfloat16)
_MISFIT = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError)


class Checkpoints:
    """The checkpoints of a folder: the last two, and the tensors that they hold, each in one file."""

    def __init__(self, folder: Path):
        self._folder, self._tensors = folder, TensorFiles(folder / _TENSORS)

    def save(self, count: int, tree: Any) -> Path:
        """Write checkpoint number `count`; delete all but it and the one before it. Return its path.

        Large tensors whose files are there are not written again.
        """
        make_folder(self._folder)
        path = self._folder / f"{count:08d}.safetensors"
        _write(path, tree, self._tensors)
        paths = files_in(self._folder, "*.safetensors")
        with storage_errors(self._folder, "cleaned"):
            for old in paths[:-_KEEP]:
                old.unlink()
        self._tensors.clean({digest for last in paths[-_KEEP:] for digest in _digests_in(last)})
        return path


def write(path: Path, tree: Any) -> None:
    """Write a record to one file; it is on disk when this returns."""
    _write(path, tree, None)


def _write(path: Path, tree: Any, files: TensorFiles | None) -> None:
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_pack(tree, tensors, {}))
    own = {k: files.put(t) for k, t in tensors.items() if t.nbytes >= _LARGE} if files is not None else {}
    arrays = {k: array_of(t) for k, t in tensors.items() if k not in own}
    metadata = {"format": _FORMAT, "record": skeleton}
    if own:
        metadata = {"format": _FORMAT_WITH_FILES, "record": skeleton, "tensors": json.dumps(own)}
    write_safetensors(path, arrays, {**metadata, "sha256": digest_of_record(metadata, arrays)})


def _digests_in(path: Path) -> Iterator[str]:
    """Yield the digests of the tensors outside of a checkpoint; none if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with storage_errors(path, "read"), safe_open(path, framework="np") as f:
            yield from _tensors_of(f.metadata() or {}).values()
    except (SafetensorError, *_MISFIT):
        return


def _tensors_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the tensors that have files of their own, by name."""
    found = json.loads(metadata.get("tensors", "{}"))
    if not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in found.values()):
        raise ValueError("its list of tensors is not one")
    return dict(found)


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a folder, None if it has none."""
    return max(files_in(folder, "*.safetensors"), default=None)


def load(path: Path, device: str = "cpu", *, remedy: str | None = None) -> Any:
    """Return the record in a checkpoint; raise DamagedFile if its content is not what was written.

    `remedy`: what to do about a damaged file that is no checkpoint.
    """
    from safetensors import SafetensorError, safe_open

    arrays: dict[str, np.ndarray[Any, Any]] = {}
    if not path.exists():
        raise _damaged_file(path, "it is gone", remedy)
    try:
        with storage_errors(path, "read"):
            open_regular(path).close()
        with storage_errors(path, "read"), safe_open(path, framework="np") as f:
            metadata = f.metadata() or {}
            for name in f.keys():  # noqa: SIM118 - not a mapping
                arrays[name] = f.get_tensor(name)
    except (SafetensorError, *_MISFIT) as e:
        raise _damaged_file(path, str(e), remedy) from e
    if metadata.get("format") not in (_FORMAT, _FORMAT_WITH_FILES):
        raise _damaged_file(path, f"it is not a {_FORMAT} file", remedy)
    if metadata.get("sha256") != digest_of_record(metadata, arrays):
        raise _damaged_file(path, "its content is not what was written", remedy)
    tensors = {k: torch.from_numpy(v).to(device) for k, v in arrays.items()}
    with fitting(path, remedy):
        try:
            for name, digest in _tensors_of(metadata).items():
                tensors[name] = read_tensor_file(path.parent / _TENSORS, digest).to(device)
        except DamagedFile as e:
            raise _damaged_file(path, str(e), remedy) from e
        return _unpack(json.loads(metadata["record"]), tensors)


@contextmanager
def fitting(path: Path, remedy: str | None = None) -> Iterator[None]:
    """Raise DamagedFile where a record is read that lacks something or has something of another type or shape."""
    try:
        yield
    except TarryError:
        raise
    except _MISFIT as e:
        raise _damaged_file(path, f"its record does not fit ({type(e).__name__}: {first_line(e)})", remedy) from e


def _damaged_file(path: Path, why: str, remedy: str | None) -> DamagedFile:
    if remedy is not None:
        return DamagedFile(f"{path} is damaged: {why}; {remedy}")
    others = [p for p in files_in(path.parent, "*.safetensors") if p != path]
    way_out = f"delete it to go on from {others[-1].name}" if others else "delete it to begin again from the start"
    return DamagedFile(f"checkpoint {path} is damaged: {why}; {way_out}")


def digest_of_record(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Return the digest of a checkpoint's content: its record, the list of its tensors outside, and its arrays."""
    h = hashlib.sha256((metadata.get("record", "") + metadata.get("tensors", "")).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        h.update(f"{name} {array.dtype.str} {array.shape}".encode())
        h.update(array.data)
    return h.hexdigest()


def _pack(x: Any, tensors: dict[str, Tensor], seen: dict[int, str]) -> Any:
    """Return the record as JSON: a tensor becomes a name, a dict a list of pairs (its keys may be numbers)."""
    if isinstance(x, Tensor):
        if id(x) not in seen:
            seen[id(x)] = f"t{len(seen)}"
            tensors[seen[id(x)]] = x
        return {"tensor": seen[id(x)]}
    if isinstance(x, ClientTable):
        return {"table": _pack(x.save(), tensors, seen)}
    if isinstance(x, ClientScalars):
        return {"marks": [[k, _pack(v, tensors, seen)] for k, v in x.items()]}
    if isinstance(x, StateRecord):
        x = x.dump()
    if isinstance(x, Mapping):
        return {"dict": [[k, _pack(v, tensors, seen)] for k, v in x.items()]}
    if isinstance(x, tuple):
        return {"tuple": [_pack(v, tensors, seen) for v in x]}
    if isinstance(x, list):
        return [_pack(v, tensors, seen) for v in x]
    assert x is None or isinstance(x, bool | int | float | str), f"a record may not hold {type(x).__name__}"
    return x


def _unpack(x: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(x, list):
        return [_unpack(v, tensors) for v in x]
    if not isinstance(x, dict):
        return x
    if "tensor" in x:
        return tensors[x["tensor"]]
    if "table" in x:
        return ClientTable.load(_unpack(x["table"], tensors))
    if "marks" in x:
        return ClientScalars((k, _unpack(v, tensors)) for k, v in x["marks"])
    if "tuple" in x:
        return tuple(_unpack(v, tensors) for v in x["tuple"])
    return {k: _unpack(v, tensors) for k, v in x["dict"]}
