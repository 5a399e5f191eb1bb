"""A task: the model, the loss, the examples of each client and the test set.

    Task("mine", model=MyNet, loss=torch.nn.functional.cross_entropy, clients=[(x0, y0), (x1, y1)], test=(x, y))

A task that is not cut up yet has `train` (and perhaps `groups`, the natural group of each example) in place of
`clients`; `split` cuts it by a partitioner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .dataset_rows import ColumnName, DatasetColumns
from .datasets import CacheSettings, DatasetReader, check_index_lists, datasets_of
from .errors import BadInput
from .metric import Metric
from .one_line import cut_to_width, function_name
from .printable import html_text
from .shards import Examples, Indices, MappedExamples, MappedShards, Shards, client_sizes

__all__ = ["Examples", "Indices", "Partitioner", "Task", "has_classes"]

#: labels (one whole number an example), natural groups or None, number of clients, generator → one index list a client
Partitioner = Callable[[Indices, Indices | None, int, np.random.Generator], list[Indices]]


def has_classes(examples: Examples) -> bool:
    """Return whether the targets are one whole number for each example."""
    return not examples[1].is_floating_point() and examples[1].ndim == 1


@dataclass(frozen=True, repr=False)
class Task:
    """A learning problem; `model` builds a fresh ordinary module, `loss(outputs, targets)` is a mean over the batch.

    >>> def examples(n):
    ...     x = torch.randn(n, 4)
    ...     return x, (x[:, 0] > 0).long()
    >>> task = tarry.Task(
    ...     "sign",
    ...     model=lambda: torch.nn.Linear(4, 2),
    ...     loss=torch.nn.functional.cross_entropy,
    ...     clients=[examples(30), examples(50)],
    ...     test=examples(20),
    ... )
    >>> task
    Task(sign: 80 train, 20 test, 2 clients, model <lambda>)
    >>> tarry.run("fedasync", task, updates=10).n_clients
    2
    """

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    clients: Sequence[Examples] = ()
    test: Examples | None = None
    train: Examples | None = None
    validation: Examples | None = None  # what a run is scored on before its end, in place of the test set
    groups: Tensor | None = None
    #: names, records or functions (outputs, targets); None: accuracy for classes, rmse for numbers
    metrics: Sequence[str | Metric | Callable[[Tensor, Tensor], Any]] | None = None
    unlabeled: Tensor | None = None  # inputs the server has, without labels
    unlabeled_mask: Tensor | None = None  # which of their places count, for sequences
    distill_lr: float | None = None  # the rate at which the server may distill, where it is known
    #: (inputs, numbers in [0, 1), `n_draws` for each input) → inputs as they are trained on, fresh every epoch
    augment: Callable[[Tensor, Tensor], Tensor] | None = None
    n_draws: int = 0
    chunk: int = 1000  # test examples that are looked at at once

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        model: Callable[[], nn.Module] | nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        *,
        test: Any = None,
        name: str | None = None,
        input_column: ColumnName | None = None,
        target_column: ColumnName | None = None,
        transform: Callable[[Any], tuple[Any, Any]] | None = None,
        clients: Sequence[Sequence[int]] | None = None,
        clients_by: ColumnName | Callable[[Any], str | int] | None = None,
        cache: str | Path | None = None,
        cache_gigabytes: float = 100.0,
        **others: Any,
    ) -> Task:
        """Return the task of a torch or Hugging Face data set, or of a list with a data set for each client.

        An example is a pair, or a row with columns for input and target, or what `transform` makes a pair of. Examples
        are read once, with all transforms. The partition of a run splits them over clients, unless `clients` has the
        indices of each client's examples, or `clients_by` (a column, or a function of an example) names their clients.
        With `cache`, examples are stored in that folder, in at most `cache_gigabytes`, and mapped to memory: they may
        be larger than the memory. `others` are further fields of the task.

        >>> from torch.utils.data import TensorDataset
        >>> dataset = TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
        >>> task = tarry.Task.from_dataset(dataset, lambda: torch.nn.Linear(4, 2), name="mine")
        >>> tarry.run("fedasync", task, clients=5, updates=10).n_clients
        5
        >>> model = torch.nn.Linear(4, 2)
        >>> tarry.Task.from_dataset(dataset, model, name="own", clients_by=lambda example: example[1].item())
        Task(own: 60 train, 2 clients, model Linear)
        """
        each = datasets_of(dataset)
        ways = {"a list of data sets": each, "clients": clients, "clients_by": clients_by}
        if len(given := [way for way, value in ways.items() if value is not None]) > 1:
            raise BadInput(f"from_dataset: {' and '.join(given)} both say whose the examples are; give one of the two")
        files = None if cache is None else CacheSettings(cache, cache_gigabytes)
        columns = DatasetColumns(input_column, target_column, clients_by, transform)
        reader = DatasetReader([dataset] if each is None else each, columns, files, name)
        name = reader.name
        parts = None if clients is None else check_index_lists(clients, sum(reader.sizes))
        tested = None
        if test is not None:
            tested, _ = DatasetReader([test], replace(columns, client=None), files, f"{name}-test").read()
        if given:
            return cls(name, model=model, loss=loss, clients=reader.shards(parts), test=tested, **others)
        return cls(name, model=model, loss=loss, train=reader.read()[0], test=tested, **others)

    def __repr__(self) -> str:
        parts = [f"{n:,} {what}" for what, n in self._sizes().items()]
        return cut_to_width(f"Task({self.name}: {', '.join(parts)}, model {self._model_name()})")

    def _repr_html_(self) -> str:
        """Return a table of sizes, shapes and the model, for a notebook."""
        examples = self.train or self.test or (self.clients[0] if len(self.clients) else None)
        shapes = {} if examples is None else {"an input": _shape_of(examples[0]), "a target": _shape_of(examples[1])}
        facts = {**{what: f"{n:,}" for what, n in self._sizes().items()}, **shapes, "model": self._model_name()}
        rows = "".join(f"<tr><th>{html_text(k)}</th><td>{html_text(v)}</td></tr>" for k, v in facts.items())
        return f"<p><b>{html_text(self.name)}</b></p><table>{rows}</table>"

    def _sizes(self) -> dict[str, int]:
        sizes = client_sizes(self.clients) if self.train is None else [len(self.train[0])]
        others = {name: len(e[0]) for name in ("validation", "test") if (e := getattr(self, name)) is not None}
        return {"train": sum(sizes), **others, **({"clients": len(self.clients)} if self.clients else {})}

    def _model_name(self) -> str:
        return function_name(self.model if not isinstance(self.model, nn.Module) else type(self.model))

    def kinds(self) -> Indices:
        """Return the class of each training example, as partitions take it; 0 where targets are no classes.

        >>> tarry.tasks["digits"](limit=100).kinds().shape
        (100,)
        """
        assert self.train is not None
        y = self.train[1]
        are_classes = y.ndim == 1 and not y.is_floating_point()
        return y.numpy().astype(np.int64) if are_classes else np.zeros(len(y), np.int64)

    def split(
        self,
        partitioner: Partitioner,
        n_clients: int,
        rng: np.random.Generator,
        validation: Indices | None = None,
    ) -> Task:
        """Return the same task with its training examples split over `n_clients` clients.

        `validation`: rows that no client gets, and that the task is validated on.

        >>> import numpy as np
        >>> task = tarry.tasks["digits"](limit=100)
        >>> task.split(tarry.partitions["iid"](), 4, np.random.default_rng(0))
        Task(digits: 100 train, 360 test, 4 clients, model mlp)
        """
        if self.train is None:
            raise BadInput(f"--partition: the examples of task {self.name!r} belong to its clients already")
        x, y = self.train
        labels, task = self.kinds(), self
        groups = None if self.groups is None else self.groups.numpy().astype(np.int64)
        if validation is None:
            parts = partitioner(labels, groups, n_clients, rng)
        else:
            rest = np.setdiff1d(np.arange(len(x)), validation)
            parts = partitioner(labels[rest], None if groups is None else groups[rest], n_clients, rng)
            parts = [rest[part] for part in parts]
            task = replace(self, validation=(x[validation], y[validation]))
        assert len(parts) == n_clients, f"the partitioner made {len(parts)} parts for {n_clients} clients"
        mapped = self.train if isinstance(self.train, MappedExamples) else None
        clients = Shards.cut(x, y, parts) if mapped is None else MappedShards(mapped, parts)
        return replace(task, clients=clients, train=None, groups=None)

    @property
    def during_run(self) -> Task:
        """The task as it is scored before the end of a run: on the validation set, if there is one.

        >>> task = tarry.tasks["digits"](limit=100)
        >>> task.during_run is task
        True
        """
        return self if self.validation is None else replace(self, test=self.validation)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Task:
        """Return the same task with the floating-point examples of clients and tests in `dtype`, all on `device`.

        >>> x, y = tarry.tasks["digits"](limit=100).to(torch.float64).test
        >>> x.dtype, y.dtype
        (torch.float64, torch.int64)
        """
        cast, clients = partial(_cast, dtype=dtype, device=device), self.clients
        if isinstance(clients, Shards | MappedShards):
            clients = clients.to(cast)
        else:
            clients = [(cast(x), cast(y)) for x, y in clients]
        test, validation = (None if e is None else (cast(e[0]), cast(e[1])) for e in (self.test, self.validation))
        unlabeled = None if self.unlabeled is None else cast(self.unlabeled)
        mask = None if self.unlabeled_mask is None else self.unlabeled_mask.to(device)
        return replace(
            self, clients=clients, test=test, validation=validation, unlabeled=unlabeled, unlabeled_mask=mask
        )


def _shape_of(examples: Tensor) -> str:
    shape = "×".join(map(str, examples.shape[1:])) or "a number"
    return f"{shape}, {str(examples.dtype).removeprefix('torch.')}"


def _cast(t: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return t.to(device, dtype) if t.is_floating_point() else t.to(device)
