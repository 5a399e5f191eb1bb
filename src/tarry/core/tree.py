"""Plain records: trees of None, bool, int, float, str, tensors, lists, tuples and dicts. And the bytes they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

__all__ = ["Ledger", "tensors"]


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor of a record."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from tensors(value)


class Ledger:
    """Bytes of distinct tensors held, and the most there ever were. A tensor held twice counts once."""

    def __init__(self, *, peak: int = 0):
        self._held: dict[int, int] = {}
        self.now, self.peak = 0, peak

    def hold(self, t: Tensor) -> None:
        count = self._held.get(id(t), 0)
        self._held[id(t)] = count + 1
        if count == 0:
            self.now += t.nbytes
            self.peak = max(self.peak, self.now)

    def release(self, t: Tensor) -> None:
        count = self._held[id(t)] - 1
        if count:
            self._held[id(t)] = count
        else:
            del self._held[id(t)]
            self.now -= t.nbytes

    def watch(self, tree: Any) -> None:
        """Count a record that is kept beside what is held."""
        extra = {id(t): t.nbytes for t in tensors(tree) if id(t) not in self._held}
        self.peak = max(self.peak, self.now + sum(extra.values()))
