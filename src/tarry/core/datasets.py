"""Examples of torch and Hugging Face data sets: read once, in memory or in mapped files of a cache folder."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dataset_rows import ClientKey, DatasetColumns, DatasetRows
from .errors import BadInput
from .example_files import ExampleCache
from .shards import Examples, Indices, MappedExamples, MappedShards, Shards
from .slow_read import SlowReadNotice

__all__ = ["CacheSettings", "DatasetReader", "check_index_lists", "datasets_of"]

_FORMAT = 1  # of the files in a cache; counted up where they change
_SAMPLE = 16  # examples that a digest includes


@dataclass(frozen=True)
class CacheSettings:
    """A folder for examples that are not to be in memory, and its limit in gigabytes."""

    folder: str | Path
    gigabytes: float

    def __post_init__(self) -> None:
        if not self.gigabytes > 0:
            raise BadInput(f"cache_gigabytes={self.gigabytes}: must be above 0")


class DatasetReader:
    """One data set, or several that are read one after the other: one for each client."""

    def __init__(self, datasets: Sequence[Any], columns: DatasetColumns, cache: CacheSettings | None, name: str | None):
        self.sets = [DatasetRows(d, columns) for d in datasets]
        self.sizes = [len(rows) for rows in self.sets]
        self.name = self.sets[0].kind.lower() if name is None else name
        self._columns, self._n = columns, sum(self.sizes)
        self._cache = None if cache is None else ExampleCache(cache.folder, cache.gigabytes * 1e9)

    def read(self) -> tuple[Examples, Indices | None]:
        """Return all examples, and the number of each one's client where the columns name clients."""
        if self._cache is None:
            return self._read_to_memory()
        digest, first = self._digest()
        if (found := self._cache.get(self.name, digest)) is None:
            self._cache.put(self.name, digest, self._n, first, self._write)
            found = self._cache.get(self.name, digest)
            assert found is not None, "an entry that was written can be read"
        return found

    def shards(self, parts: Sequence[Indices] | None = None) -> Shards | MappedShards:
        """Return the examples of the clients: by data set, by the clients that the columns name, or the given rows."""
        examples, clients = self.read()
        if parts is None and clients is not None:
            parts = np.split(np.argsort(clients, kind="stable"), np.cumsum(np.bincount(clients))[:-1])
        if isinstance(examples, MappedExamples):
            ends = np.cumsum(self.sizes)
            whole = [np.arange(e - n, e) for e, n in zip(ends, self.sizes, strict=True)]
            return MappedShards(examples, whole if parts is None else parts)
        return Shards(*examples, self.sizes) if parts is None else Shards.cut(*examples, parts)

    def _read_to_memory(self) -> tuple[Examples, Indices | None]:
        tensors: list[Tensor] = []
        end = 0

        def add(block: Examples) -> None:
            nonlocal end
            if not tensors:
                tensors.extend(t.new_empty(self._n, *t.shape[1:]) for t in block)
            for whole, t in zip(tensors, block, strict=True):
                if whole.shape[1:] != t.shape[1:] or whole.dtype != t.dtype:
                    raise BadInput(
                        f"from_dataset: the examples from {end:,} on are {_words(t)} and the first {_words(whole)}; all"
                        " must be alike: tensors or numbers of one shape and type"
                    )
                whole[end : end + len(t)] = t
            end += len(block[0])

        clients = self._write(add)
        return (tensors[0], tensors[1]), clients

    def _write(self, add: Any) -> Indices | None:
        """Call `add` with each block of examples; return the numbers of the clients."""
        notice, done, keys = SlowReadNotice(f"from_dataset: {self.name}, examples", self._n), 0, list[ClientKey]()
        for rows in self.sets:
            for x, y, k in rows.blocks():
                add((x, y))
                keys += k
                notice(done := done + len(x))
        return _numbered(keys) if keys else None

    def _digest(self) -> tuple[str, Examples]:
        """Return a digest of what the data sets show of themselves, and some first examples.

        It has their types and source code, lengths, fingerprints (Hugging Face), columns, and a sample of the examples
        as they are after all transforms.
        """
        columns = {k: _source(v) if callable(v) else v for k, v in vars(self._columns).items()}
        facts: list[Any] = [_FORMAT, columns]
        sha, first = hashlib.sha256(), None
        for rows in self.sets:
            fingerprint = getattr(rows.dataset, "_fingerprint", None)
            transform = getattr(rows.dataset, "transform", None)
            facts.append([_source(type(rows.dataset)), len(rows), fingerprint, _source(transform)])
            some = np.unique(np.linspace(0, len(rows) - 1, _SAMPLE).astype(int)).tolist()
            block, again = rows.block(some), rows.block(some)
            if _bytes(block) != _bytes(again):
                raise BadInput(
                    f"cache: {rows.kind} gives another example each time that it is read, and a cache holds one; leave"
                    " random transforms out, and give augment=, which changes inputs in every epoch"
                )
            sha.update(_bytes(block))
            first = block[:2] if first is None else first
        sha.update(json.dumps(facts, default=repr).encode())
        assert first is not None
        return sha.hexdigest(), first


def datasets_of(given: Any) -> list[Any] | None:
    """Return the data sets of a list that has one for each client; None if what is given is one data set."""
    if not isinstance(given, list | tuple) or not given or any(isinstance(d, tuple | list | Mapping) for d in given):
        return None
    return list(given)


def check_index_lists(lists: Sequence[Any], n: int) -> list[Indices]:
    """Return the indices of each client's examples; raise BadInput if they are not among `n` examples."""
    parts = []
    for client, given in enumerate(lists):
        rows = np.asarray(given)
        if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
            raise BadInput(f"clients: client {client} has {len(rows) if rows.ndim else given!r} indices that are no"
                           " list of whole numbers; give a list of indices for each client")  # fmt: skip
        if rows.min() < 0 or rows.max() >= n:
            wrong = int(rows.min() if rows.min() < 0 else rows.max())
            raise BadInput(
                f"clients: client {client} has the index {wrong}, and the {n:,} examples go from 0 to {n - 1}"
            )
        parts.append(rows.astype(np.int64))
    if not parts:
        raise BadInput("clients: there is no client; give a list of indices for each")
    return parts


def _numbered(keys: list[ClientKey]) -> Indices:
    """Return the number of each key among all keys, which are sorted: numbers first, then texts."""
    order = sorted(set(keys), key=lambda k: (isinstance(k, str), k))
    number = {key: i for i, key in enumerate(order)}
    return np.array([number[k] for k in keys], np.int64)


def _bytes(block: tuple[Tensor, Tensor, list[ClientKey]]) -> bytes:
    x, y, keys = block
    return (
        b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in (x, y) if t.numel()) + repr(keys).encode()
    )


def _source(thing: Any) -> str:
    """Return the source code of a class or function, else its name."""
    if thing is None:
        return ""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _words(t: Tensor) -> str:
    return f"{'×'.join(map(str, t.shape[1:])) or 'numbers'}, {str(t.dtype).removeprefix('torch.')}"
