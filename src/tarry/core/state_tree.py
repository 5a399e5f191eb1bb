"""Plain records: trees of None, numbers, text, tensors, tables, lists, tuples and dicts. And the bytes they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .client_table import Marks, Table

__all__ = ["Ledger", "copied", "tables", "tensors"]


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor of a record."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Table):
        yield from tree.values()
    elif isinstance(tree, dict) and not isinstance(tree, Marks):
        for value in tree.values():
            yield from tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from tensors(value)


def tables(tree: Any, name: str = "table") -> Iterator[tuple[str, Table]]:
    """Every table of a record, with a name made of the way to it."""
    if isinstance(tree, Table):
        yield name, tree
    elif isinstance(tree, dict) and not isinstance(tree, Marks):
        for key, value in tree.items():
            yield from tables(value, f"{name}-{key}")
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from tables(value, f"{name}-{i}")


def copied(tree: Any) -> Any:
    """The record as it is now, whatever is written to it later; tensors, which nobody writes to, are shared."""
    if isinstance(tree, Table):
        return Table.load(tree.save())
    if isinstance(tree, dict):
        return type(tree)((k, copied(v)) for k, v in tree.items())
    if isinstance(tree, list):
        return [copied(v) for v in tree]
    return tuple(copied(v) for v in tree) if type(tree) is tuple else tree


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
        extra = {id(x): x.nbytes for x in _holders(tree) if id(x) not in self._held}
        self.peak = max(self.peak, self.now + sum(extra.values()))


def _holders(tree: Any) -> Iterator[Tensor | Table]:
    """Tensors, and tables as a whole: they know their size."""
    if isinstance(tree, Tensor | Table):
        yield tree
    elif isinstance(tree, dict) and not isinstance(tree, Marks):
        for value in tree.values():
            yield from _holders(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _holders(value)
