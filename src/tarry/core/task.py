"""A task: the model, the loss, the examples of each client and the test set.

    Task("mine", model=MyNet, loss=torch.nn.functional.cross_entropy, clients=[(x0, y0), (x1, y1)], test=(x, y))

A task that is not cut up yet has `train` (and perhaps `groups`, the natural group of each example) in place of
`clients`; `split` cuts it by a partitioner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, default_collate

from .errors import BadInput
from .metric import Metric
from .one_line import cut_to_width, function_name
from .printable import html_text

__all__ = ["Examples", "Partitioner", "Shards", "Task", "has_classes"]

Examples = tuple[Tensor, Tensor]
Indices = npt.NDArray[np.int64]
#: labels (one whole number an example), natural groups or None, number of clients, generator → one index list a client
Partitioner = Callable[[Indices, Indices | None, int, np.random.Generator], list[Indices]]


def has_classes(examples: Examples) -> bool:
    """Return whether the targets are one whole number for each example."""
    return not examples[1].is_floating_point() and examples[1].ndim == 1


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
    groups: Tensor | None = None
    #: names, records or functions (outputs, targets); None: accuracy of classes, rmse of numbers, as in the guide
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
        train: Dataset[Any],
        *,
        model: Callable[[], nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        test: Dataset[Any] | None = None,
        name: str | None = None,
        **others: Any,
    ) -> Task:
        """Return the task of a torch Dataset of (input, target) pairs, which is read once and kept in memory.

        Its examples are split over the clients by the partition of a run. `others` are further fields of the task.

        >>> from torch.utils.data import TensorDataset
        >>> dataset = TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
        >>> task = tarry.Task.from_dataset(dataset, model=lambda: torch.nn.Linear(4, 2), name="mine")
        >>> tarry.run("fedasync", task, clients=5, updates=10).n_clients
        5
        """
        examples = _read(train)
        tested = None if test is None else _read(test)
        name = type(train).__name__.lower() if name is None else name
        return cls(name, model=model, loss=loss, train=examples, test=tested, **others)

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
        sizes = [len(x) for x, _ in self.clients] if self.train is None else [len(self.train[0])]
        test = {} if self.test is None else {"test": len(self.test[0])}
        return {"train": sum(sizes), **test, **({"clients": len(self.clients)} if self.clients else {})}

    def _model_name(self) -> str:
        return function_name(self.model if not isinstance(self.model, nn.Module) else type(self.model))

    def split(self, partitioner: Partitioner, n_clients: int, rng: np.random.Generator) -> Task:
        """Return the same task with its training examples split over `n_clients` clients.

        >>> import numpy as np
        >>> task = tarry.tasks["digits"](limit=100)
        >>> task.split(tarry.partitions["iid"](), 4, np.random.default_rng(0))
        Task(digits: 100 train, 360 test, 4 clients, model mlp)
        """
        if self.train is None:
            raise BadInput(f"--partition: the examples of task {self.name!r} belong to its clients already")
        x, y = self.train
        labels = y.numpy().astype(np.int64) if not y.is_floating_point() else np.zeros(len(y), np.int64)
        groups = None if self.groups is None else self.groups.numpy().astype(np.int64)
        parts = partitioner(labels, groups, n_clients, rng)
        assert len(parts) == n_clients, f"the partitioner made {len(parts)} parts for {n_clients} clients"
        return replace(self, clients=Shards.cut(x, y, parts), train=None, groups=None)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Task:
        """Return the same task with the floating-point examples of clients and tests in `dtype`, all on `device`.

        >>> x, y = tarry.tasks["digits"](limit=100).to(torch.float64).test
        >>> x.dtype, y.dtype
        (torch.float64, torch.int64)
        """

        def cast(t: Tensor) -> Tensor:
            return t.to(device, dtype) if t.is_floating_point() else t.to(device)

        clients = self.clients
        if isinstance(clients, Shards):
            clients = Shards(cast(clients.x), cast(clients.y), np.diff(clients.ends).tolist())
        else:
            clients = [(cast(x), cast(y)) for x, y in clients]
        test = None if self.test is None else (cast(self.test[0]), cast(self.test[1]))
        unlabeled = None if self.unlabeled is None else cast(self.unlabeled)
        mask = None if self.unlabeled_mask is None else self.unlabeled_mask.to(device)
        return replace(self, clients=clients, test=test, unlabeled=unlabeled, unlabeled_mask=mask)


def _shape_of(examples: Tensor) -> str:
    shape = "×".join(map(str, examples.shape[1:])) or "a number"
    return f"{shape}, {str(examples.dtype).removeprefix('torch.')}"


def _read(dataset: Dataset[Any]) -> Examples:
    """Return all examples of a dataset as two tensors; raise BadInput if they are no pairs of one shape."""
    kind = type(dataset).__name__
    if not hasattr(dataset, "__len__"):
        raise BadInput(f"from_dataset: {kind} has no length; give a dataset with __len__ and __getitem__")
    try:
        x, y = default_collate([dataset[i] for i in range(len(dataset))])
    except (TypeError, ValueError, RuntimeError) as e:
        raise BadInput(
            f"from_dataset: the examples of {kind} must be pairs of an input and a target, tensors or numbers of one"
            f" shape ({e}); give the dataset a transform"
        ) from e
    return x, y
