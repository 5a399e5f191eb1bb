"""Rows of a data set: examples of torch and Hugging Face data sets as pairs of tensors, with their clients.

A row is a pair, a longer tuple, or a dictionary of columns. The columns of input and target are given, or inferred
where only one choice is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from .errors import BadInput, first_line

__all__ = ["ColumnName", "DatasetColumns", "DatasetRows"]

ColumnName = str | int  # the name of a column, or a position in a tuple
ClientKey = Any  # what names a client: a text or a number

_TARGETS = ("label", "labels", "target", "targets", "y")
_INPUTS = ("image", "img", "input", "inputs", "x", "input_ids", "pixel_values", "features", "data")
_AT_A_TIME, _BYTES_AT_A_TIME = 256, 1 << 24  # examples that are stacked at once: so many, or of so many bytes


@dataclass(frozen=True)
class DatasetColumns:
    """The parts of a row: input, target and client; and the function that makes a pair of a row in their place."""

    input: ColumnName | None = None
    target: ColumnName | None = None
    client: ColumnName | Callable[[Any], ClientKey] | None = None
    transform: Callable[[Any], Any] | None = None


class DatasetRows:
    """The rows of one data set as pairs of tensors. Raise BadInput, with a remedy, for what is no map-style set."""

    def __init__(self, dataset: Any, columns: DatasetColumns):
        self.dataset, self.columns = _map_style(dataset), columns
        self.kind = type(self.dataset).__name__
        if len(self.dataset) == 0:
            raise BadInput(f"from_dataset: {self.kind} has no examples")

    def __len__(self) -> int:
        return len(self.dataset)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, list[ClientKey]]]:
        """Yield the examples in order: inputs and targets, some at a time, and the keys of their clients."""
        first = self.block([0])
        yield first
        size = max(1, min(_AT_A_TIME, _BYTES_AT_A_TIME // max(1, first[0].nbytes + first[1].nbytes)))
        for begin in range(1, len(self), size):
            yield self.block(range(begin, min(begin + size, len(self))))

    def block(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor, list[ClientKey]]:
        """Return inputs and targets of the chosen examples, and the keys of their clients, if there are any."""
        pairs, keys = [], []
        for i in chosen:
            row = self.dataset[i]
            pairs.append(self._pair(i, row))
            if self.columns.client is not None:
                keys.append(self._key(i, row))
        try:
            x, y = (default_collate(list(column)) for column in zip(*pairs, strict=True))
        except (TypeError, ValueError, RuntimeError) as e:
            raise self._no_pairs(first_line(e)) from e
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise self._no_pairs(f"they are {type(pairs[0][0]).__name__} and {type(pairs[0][1]).__name__}")
        return x, y, keys

    def _pair(self, i: int, row: Any) -> tuple[Any, Any]:
        c = self.columns
        if c.transform is not None:
            pair: Any = c.transform(row)
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise BadInput(f"from_dataset: transform returned {type(pair).__name__}; it should return a pair of an"
                               " input and a target")  # fmt: skip
        elif isinstance(row, Mapping):
            names = self._input_and_target(row)
            pair = (_cell(row, name, i) for name in names)
        elif isinstance(row, tuple | list) and (len(row) == 2 or c.input is not None or c.target is not None):
            pair = (_cell(row, name, i) for name in (0 if c.input is None else c.input, _or_one(c.target)))
        else:
            raise self._no_pairs(f"an example is a {type(row).__name__}{_length(row)}")
        x, y = (_as_number_or_tensor(value) for value in pair)
        return x, y

    def _input_and_target(self, row: Mapping[Any, Any]) -> tuple[ColumnName, ColumnName]:
        """Return the columns of input and target: given, or the only ones that it can be."""
        names, c = list(row), self.columns
        taken = {n for n in (c.input, c.target, c.client) if n is not None and not callable(n)}
        target = c.target if c.target is not None else _only([n for n in names if n in _TARGETS and n not in taken])
        free = [n for n in names if n not in taken and n != target]
        known = [n for n in free if n in _INPUTS]
        found = c.input if c.input is not None else _only(free if len(free) == 1 else known)
        if found is None or target is None:
            raise BadInput(
                f"from_dataset: {self.kind} has the columns {', '.join(map(repr, names))}; name input and target:"
                f" input_column={found or names[0]!r}, target_column={target or names[-1]!r}"
            )
        return found, target

    def _key(self, i: int, row: Any) -> ClientKey:
        by = self.columns.client
        key = by(row) if callable(by) else _cell(row, by, i)
        key = key.item() if isinstance(key, Tensor | np.generic) and np.ndim(key) == 0 else key
        if not isinstance(key, str | int | float | bool) or key != key:
            raise BadInput(f"from_dataset: clients_by gives {key!r} for example {i}; it wants a text or a number")
        return key

    def _no_pairs(self, why: str) -> BadInput:
        return BadInput(
            f"from_dataset: the examples of {self.kind} must be pairs of an input and a target, tensors or numbers of"
            f" one shape ({why}); give transform=, a function from an example to such a pair"
        )


def _map_style(dataset: Any) -> Any:
    """Return the data set, of a DataLoader its own; raise BadInput if it has no length or order."""
    kind, library = type(dataset).__name__, type(dataset).__module__.partition(".")[0]
    if isinstance(dataset, DataLoader):
        return _of_loader(dataset)
    if library == "datasets" and isinstance(dataset, Mapping):
        parts = ", ".join(map(repr, dataset))
        raise BadInput(f"from_dataset: {kind} holds the parts {parts}; give one, as d['train'], and test=d['test']")
    if isinstance(dataset, IterableDataset) or (library == "datasets" and not hasattr(dataset, "__len__")):
        way_out = "load it without streaming=True" if library == "datasets" else "tarry.Task takes tensors"
        raise BadInput(
            f"from_dataset: {kind} is iterable: it has no length and no order, and cannot be split over clients; give"
            f" a data set with __len__ and __getitem__ ({way_out})"
        )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise BadInput(f"from_dataset: {kind} has no length; give a dataset with __len__ and __getitem__")
    return dataset


def _of_loader(loader: DataLoader[Any]) -> Any:
    """Return the data set of a DataLoader that adds nothing but batches; a run makes batches of its own."""
    if isinstance(loader.dataset, IterableDataset):
        return _map_style(loader.dataset)
    if loader.collate_fn is not default_collate:
        raise BadInput(
            "from_dataset: a DataLoader with a collate_fn of its own makes other examples than its data set; give"
            " loader.dataset, and transform=, a function from an example to a pair"
        )
    sampler: Any = loader.sampler
    if not isinstance(sampler, RandomSampler | SequentialSampler) or getattr(sampler, "replacement", False):
        raise BadInput(
            f"from_dataset: a DataLoader with a {type(sampler).__name__} chooses examples; give the chosen ones as a"
            " data set: torch.utils.data.Subset(loader.dataset, indices)"
        )
    return _map_style(loader.dataset)


def _only(names: Sequence[Any]) -> Any:
    return names[0] if len(names) == 1 else None


def _or_one(target: ColumnName | None) -> ColumnName:
    return 1 if target is None else target


def _length(row: Any) -> str:
    return f" of {len(row)}" if isinstance(row, tuple | list) else ""


def _cell(row: Any, name: Any, i: int) -> Any:
    """Return a cell of a row; raise BadInput that lists the columns if there is none."""
    try:
        value = row[name]
    except (KeyError, IndexError, TypeError) as e:
        there = ", ".join(map(repr, row)) if isinstance(row, Mapping) else f"positions 0 to {len(row) - 1}"
        raise BadInput(f"from_dataset: there is no column {name!r}; example {i} has {there}") from e
    if value is None:
        raise BadInput(f"from_dataset: column {name!r} of example {i} is empty; leave such examples out")
    return value


def _as_number_or_tensor(value: Any) -> Any:
    """Return lists of numbers, as Hugging Face data sets have them, as a tensor; all else as it is."""
    if not isinstance(value, list):
        return value
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError) as e:
        raise BadInput(
            f"from_dataset: a list in an example is no tensor ({first_line(e)}); give transform=, a function from an"
            " example to a pair of tensors of one shape"
        ) from e
