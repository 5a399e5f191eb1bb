"""The examples of all clients: in two tensors (Shards), or as rows of mapped files (MappedShards)."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Examples", "Indices", "MappedExamples", "MappedShards", "Shards", "client_sizes"]

Examples = tuple[Tensor, Tensor]
Indices = npt.NDArray[np.int64]


class Shards(Sequence[Examples]):
    """The examples of all clients in two tensors; each client's are a contiguous slice, read without a copy."""

    def __init__(self, x: Tensor, y: Tensor, sizes: Sequence[int]):
        assert len(x) == len(y) == sum(sizes)
        self.x, self.y = x, y
        self.ends = np.concatenate([[0], np.cumsum(sizes)]).tolist()

    @classmethod
    def cut(cls, x: Tensor, y: Tensor, parts: Sequence[Indices]) -> Shards:
        order = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        return cls(x[order], y[order], [len(p) for p in parts])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, client: int) -> Examples:  # type: ignore[override]
        a, b = self.ends[client], self.ends[client + 1]
        return self.x[a:b], self.y[a:b]

    def __iter__(self) -> Iterator[Examples]:
        return (self[i] for i in range(len(self)))

    def to(self, cast: Callable[[Tensor], Tensor]) -> Shards:
        """Return the shards with `cast` applied to their tensors."""
        return Shards(cast(self.x), cast(self.y), np.diff(self.ends).tolist())


class MappedExamples(tuple[Tensor, Tensor]):
    """Inputs and targets in two .npy files of a folder. The tensors map the files: reading a row reads its place.

    The files never change: what a program writes to the tensors stays in its own memory, until `release`. Another
    process that gets the examples maps the same files.
    """

    folder: Path
    _maps: tuple[mmap.mmap, ...]

    def __new__(cls, folder: Path) -> MappedExamples:
        arrays: list[Any] = [np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in "xy"]
        self = super().__new__(cls, (torch.from_numpy(a) for a in arrays))
        self.folder, self._maps = folder, tuple(a._mmap for a in arrays)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedExamples, (self.folder,)

    def release(self) -> None:
        """Take the pages that were read out of the memory of this process. The system may have them in its cache."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for pages in self._maps:
                pages.madvise(mmap.MADV_DONTNEED)


class MappedShards(Sequence[Examples]):
    """The examples of all clients as rows of mapped files; those of a client are read when they are used.

    Client i has the rows order[ends[i]:ends[i + 1]].
    """

    def __init__(
        self, source: MappedExamples, parts: Sequence[Indices], cast: Callable[[Tensor], Tensor] = lambda t: t
    ):
        self.source, self._parts, self._cast = source, parts, cast
        self.order = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        self.ends = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).tolist()

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, client: int) -> Examples:  # type: ignore[override]
        if not -len(self) <= client < len(self):
            raise IndexError(client)
        client %= len(self)
        rows = self.rows(client)
        x, y = (self._cast(t[rows]) for t in self.source)
        self.source.release()
        return x, y

    def __iter__(self) -> Iterator[Examples]:
        return (self[i] for i in range(len(self)))

    def rows(self, client: int) -> Tensor:
        """Return the rows of the files that are the client's."""
        return self.order[self.ends[client] : self.ends[client + 1]]

    def choose(self, chosen: Sequence[Indices]) -> MappedShards:
        """Return the shards with only the chosen examples of each client."""
        parts = [part[rows] for part, rows in zip(self._parts, chosen, strict=True)]
        return MappedShards(self.source, parts, self._cast)

    def to(self, cast: Callable[[Tensor], Tensor]) -> MappedShards:
        """Return the shards with `cast` applied to the examples of a client when they are read."""
        return MappedShards(self.source, self._parts, cast)

    @property
    def is_cast(self) -> bool:
        """Return whether examples have another type or device than in the files."""
        rows = [t[:1] for t in self.source]
        return any(self._cast(t) is not t for t in rows)


def client_sizes(clients: Sequence[Examples]) -> list[int]:
    """Return the number of examples of each client; those in files are not read."""
    if isinstance(clients, Shards | MappedShards):
        sizes: list[int] = np.diff(clients.ends).tolist()
        return sizes
    return [len(x) for x, _ in clients]
