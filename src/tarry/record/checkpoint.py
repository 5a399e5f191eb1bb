"""Checkpoints: a plain record in one safetensors file, with tensors as tensors and the rest as JSON in its header.

Nothing is pickled. A file is written under another name, flushed and renamed, so a kill leaves the last complete one; a
digest of the content detects damage. Tensors that were shared are shared again after loading. A file that was forged
with a digest of its own raises DamagedFile as well when its content does not fit (`fitting`).
"""

from __future__ import annotations

import hashlib
import json
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
from .storage import make_folder, open_regular, write_atomic

__all__ = ["fitting", "latest", "load", "save", "write"]

_FORMAT = "tarry-checkpoint-2"
_KEEP = 2
#: what reading raises where a record lacks something, or has another type or shape (numpy lacks bfloat16)
_MISFIT = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError)


def save(folder: Path, count: int, tree: Any) -> Path:
    """Write checkpoint number `count`; delete all but it and the one before it. Return its path."""
    make_folder(folder)
    path = folder / f"{count:08d}.safetensors"
    write(path, tree)
    with storage_errors(folder, "cleaned"):
        for old in files_in(folder, "*.safetensors")[:-_KEEP]:
            old.unlink()
    return path


def write(path: Path, tree: Any) -> None:
    """Write a record to a file; it is on disk when this returns."""
    from safetensors.numpy import save as serialize

    arrays: dict[str, np.ndarray[Any, Any]] = {}
    skeleton = json.dumps(_pack(tree, arrays, {}))
    metadata = {"format": _FORMAT, "record": skeleton, "sha256": _digest(skeleton, arrays)}
    write_atomic(path, serialize(arrays, metadata=metadata))


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
    if metadata.get("format") != _FORMAT:
        raise _damaged_file(path, f"it is not a {_FORMAT} file", remedy)
    skeleton = metadata.get("record", "")
    if metadata.get("sha256") != _digest(skeleton, arrays):
        raise _damaged_file(path, "its content is not what was written", remedy)
    with fitting(path, remedy):
        return _unpack(json.loads(skeleton), {k: torch.from_numpy(v).to(device) for k, v in arrays.items()})


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


def _digest(skeleton: str, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    h = hashlib.sha256(skeleton.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        h.update(f"{name} {array.dtype.str} {array.shape}".encode())
        h.update(array.data)
    return h.hexdigest()


def _pack(x: Any, arrays: dict[str, np.ndarray[Any, Any]], seen: dict[int, str]) -> Any:
    """Return the record as JSON: a tensor becomes a name, a dict a list of pairs (its keys may be numbers)."""
    if isinstance(x, Tensor):
        if id(x) not in seen:
            seen[id(x)] = f"t{len(seen)}"
            arrays[seen[id(x)]] = x.detach().cpu().contiguous().numpy()
        return {"tensor": seen[id(x)]}
    if isinstance(x, ClientTable):
        return {"table": _pack(x.save(), arrays, seen)}
    if isinstance(x, ClientScalars):
        return {"marks": [[k, _pack(v, arrays, seen)] for k, v in x.items()]}
    if isinstance(x, StateRecord):
        x = x.dump()
    if isinstance(x, Mapping):
        return {"dict": [[k, _pack(v, arrays, seen)] for k, v in x.items()]}
    if isinstance(x, tuple):
        return {"tuple": [_pack(v, arrays, seen) for v in x]}
    if isinstance(x, list):
        return [_pack(v, arrays, seen) for v in x]
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
