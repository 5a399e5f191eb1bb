"""State trees: None, numbers, text, tensors, tables, and lists, tuples, dicts and typed records of these.

    tensors(tree), tables(tree)     what a tree holds
    copy_tree(tree)                 a copy that later writes to the original do not change
    restore_records(tree, like)     the same, with the typed records of `like` in place of the dicts of a checkpoint

A typed record is a dataclass derived from StateRecord. On disk it is a dict of its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from torch import Tensor

from .client_table import ClientScalars, ClientTable

__all__ = ["MemoryMeter", "StateRecord", "copy_tree", "restore_records", "tables", "tensors"]


class StateRecord:
    """Base of dataclasses that are states of parts, or stand in them: stored as a dict from field to value.

    The state that a part begins with has to contain it: a checkpoint holds no types, so `restore_records` takes them
    from there. Override `dump` and `load` together to store a record in another form.
    """

    def dump(self) -> dict[str, Any]:
        """Return the fields by name, in their order; values are not copied. A record has no other attributes."""
        return dict(vars(self))

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> Self:
        """Return the record of what `dump` returned."""
        return cls(**saved)


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield every tensor of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, ClientTable):
        yield from tree.values()
    else:
        for _, value in _children(tree):
            yield from tensors(value)


def tables(tree: Any, name: str = "table") -> Iterator[tuple[str, ClientTable]]:
    """Yield every table of a tree, with a name made of the path to it."""
    if isinstance(tree, ClientTable):
        yield name, tree
    else:
        for key, value in _children(tree):
            yield from tables(value, f"{name}-{key}")


def copy_tree(tree: Any) -> Any:
    """Return the tree as it is now, whatever is written to it later. Tensors are shared: nothing writes to them."""
    if isinstance(tree, ClientTable):
        return ClientTable.load(tree.save())
    if isinstance(tree, StateRecord):
        return type(tree).load({k: copy_tree(v) for k, v in tree.dump().items()})
    if isinstance(tree, dict):
        return type(tree)((k, copy_tree(v)) for k, v in tree.items())
    if isinstance(tree, list):
        return [copy_tree(v) for v in tree]
    if isinstance(tree, tuple):
        values = (copy_tree(v) for v in tree)
        return tuple(values) if type(tree) is tuple else type(tree)(*values)
    return tree


def restore_records(tree: Any, like: Any) -> Any:
    """Return a copy in which a dict becomes a typed record wherever `like` has one."""
    if isinstance(like, StateRecord):
        values, known = tree.dump() if isinstance(tree, StateRecord) else tree, like.dump()
        return type(like).load({k: restore_records(v, known.get(k)) for k, v in values.items()})
    if type(tree) is dict and isinstance(like, dict):
        return {k: restore_records(v, like.get(k)) for k, v in tree.items()}
    if isinstance(tree, tuple) and isinstance(like, tuple) and len(tree) == len(like):
        values = [restore_records(v, known) for v, known in zip(tree, like, strict=True)]
        return tuple(values) if type(like) is tuple else type(like)(*values)
    return copy_tree(tree)


def _children(tree: Any) -> Iterable[tuple[Any, Any]]:
    """Return the children of a branch by key; nothing for a leaf. ClientScalars are a leaf: they hold no tensors."""
    if isinstance(tree, StateRecord):
        return tree.dump().items()
    if isinstance(tree, dict) and not isinstance(tree, ClientScalars):
        return tree.items()
    return enumerate(tree) if isinstance(tree, list | tuple) else ()


_PLAIN = frozenset({type(None), bool, int, float, str})


class MemoryMeter:
    """Bytes of distinct tensors held, and the most there ever were. A tensor held twice counts once."""

    def __init__(self, *, peak: int = 0):
        self._held: dict[int, int] = {}
        self.held, self.peak = 0, peak

    def hold(self, t: Tensor) -> None:
        count = self._held.get(id(t), 0)
        self._held[id(t)] = count + 1
        if count == 0:
            self.held += t.nbytes
            self.peak = max(self.peak, self.held)

    def release(self, t: Tensor) -> None:
        count = self._held[id(t)] - 1
        if count:
            self._held[id(t)] = count
        else:
            del self._held[id(t)]
            self.held -= t.nbytes

    def observe(self, tree: Any) -> None:
        """Count a record that is kept beside what is held."""
        extra, rest, held = dict[int, int](), [tree], self._held
        for x in rest:  # grows by the branches of x; called at every arrival, so it is one loop
            if isinstance(x, Tensor):
                if id(x) not in held:
                    extra[id(x)] = x.nbytes
            elif isinstance(x, StateRecord):
                rest += [value for value in x.dump().values() if type(value) not in _PLAIN]
            elif isinstance(x, ClientTable):
                extra[id(x)] = x.nbytes
            elif isinstance(x, dict):
                if not isinstance(x, ClientScalars):
                    rest += [value for value in x.values() if type(value) not in _PLAIN]
            elif isinstance(x, list | tuple):
                rest += x
        if extra:
            self.peak = max(self.peak, self.held + sum(extra.values()))
