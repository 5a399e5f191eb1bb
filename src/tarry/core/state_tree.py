"""State trees: None, numbers, text, tensors, tables, and lists, tuples, dicts and typed records of these.

    tensors(tree), tables(tree)     what a tree holds
    copied(tree)                    a copy that later writes to the original do not change
    restored(tree, like)            the same, with the typed records of `like` in place of the dicts of a checkpoint

A typed record is a dataclass derived from StateRecord. On disk it is a dict of its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Self, cast

from torch import Tensor

from .client_table import Marks, Table

__all__ = ["Ledger", "StateRecord", "copied", "restored", "tables", "tensors"]


class StateRecord:
    """Base of dataclasses that are states of parts, or stand in them: stored as a dict from field to value.

    The state that a part begins with has to contain it: a checkpoint holds no types, so `restored` takes them from
    there. Override `dump` and `load` together to store a record in another form.
    """

    def dump(self) -> dict[str, Any]:
        """Return the fields by name, in their order; values are not copied."""
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> Self:
        """Return the record of what `dump` returned."""
        return cls(**saved)


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield every tensor of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Table):
        yield from tree.values()
    else:
        for _, value in _children(tree):
            yield from tensors(value)


def tables(tree: Any, name: str = "table") -> Iterator[tuple[str, Table]]:
    """Yield every table of a tree, with a name made of the path to it."""
    if isinstance(tree, Table):
        yield name, tree
    else:
        for key, value in _children(tree):
            yield from tables(value, f"{name}-{key}")


def copied(tree: Any) -> Any:
    """Return the tree as it is now, whatever is written to it later. Tensors are shared: nothing writes to them."""
    if isinstance(tree, Table):
        return Table.load(tree.save())
    if isinstance(tree, StateRecord):
        return type(tree).load({k: copied(v) for k, v in tree.dump().items()})
    if isinstance(tree, dict):
        return type(tree)((k, copied(v)) for k, v in tree.items())
    if isinstance(tree, list):
        return [copied(v) for v in tree]
    if isinstance(tree, tuple):
        values = (copied(v) for v in tree)
        return tuple(values) if type(tree) is tuple else type(tree)(*values)
    return tree


def restored(tree: Any, like: Any) -> Any:
    """Return a copy in which a dict becomes a typed record wherever `like` has one."""
    if isinstance(like, StateRecord):
        values, known = tree.dump() if isinstance(tree, StateRecord) else tree, like.dump()
        return type(like).load({k: restored(v, known.get(k)) for k, v in values.items()})
    if type(tree) is dict and isinstance(like, dict):
        return {k: restored(v, like.get(k)) for k, v in tree.items()}
    if isinstance(tree, tuple) and isinstance(like, tuple) and len(tree) == len(like):
        values = [restored(v, known) for v, known in zip(tree, like, strict=True)]
        return tuple(values) if type(like) is tuple else type(like)(*values)
    return copied(tree)


def _children(tree: Any) -> Iterable[tuple[Any, Any]]:
    """Return what a branch of a tree holds, by key; nothing for a leaf. Marks are a leaf: they hold no tensors."""
    if isinstance(tree, StateRecord):
        return tree.dump().items()
    if isinstance(tree, dict) and not isinstance(tree, Marks):
        return tree.items()
    return enumerate(tree) if isinstance(tree, list | tuple) else ()


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
    """Yield tensors, and tables as a whole: they know their size."""
    if isinstance(tree, Tensor | Table):
        yield tree
    else:
        for _, value in _children(tree):
            yield from _holders(value)
