"""Validation sets: a share of the training examples, drawn by the seed, that clients do not train on.

Where a partition deals the examples out, the share is drawn before it, with the classes in proportion (for sequences:
the natural groups). Where the clients have examples already, it is drawn from each client in proportion to its number
of examples; each client has at least one left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.memory import check_memory
from ..core.rng import Stream, key, permutation
from ..core.shards import Examples, Indices, MappedShards, Shards, client_sizes
from ..core.task import Task
from .data.apportion import apportion
from .data.arrays import hold_out

__all__ = ["draw", "hold_out_of_clients"]


def draw(task: Task, share: float, seed: int) -> Indices:
    """Return the rows of the training examples that are the validation set, in stored order."""
    assert task.train is not None
    x, y = task.train
    n = _count(share, len(x), task)
    _check_size(n * (x[:1].nbytes + y[:1].nbytes), share)
    return np.flatnonzero(hold_out(task.kinds(), n, _key(seed)))


def hold_out_of_clients(task: Task, share: float, seed: int) -> Task:
    """Return a task whose clients have examples already, with a share of each client's as its validation set."""
    sizes = client_sizes(task.clients)
    n = _count(share, sum(sizes), task)
    counts = np.minimum(apportion(sizes, n), np.array(sizes) - 1)
    if not counts.any():
        raise BadInput(f"--validation {share}: no client of task {task.name!r} can spare an example; leave it out")
    held = [
        np.sort(permutation(_key(seed, c), size)[:k]) for c, (size, k) in enumerate(zip(sizes, counts, strict=True))
    ]
    rest = [np.setdiff1d(np.arange(size), rows) for size, rows in zip(sizes, held, strict=True)]
    clients: Sequence[Examples]
    if isinstance(task.clients, MappedShards):
        shards = task.clients
        chosen = torch.cat([shards.rows(c)[torch.from_numpy(rows)] for c, rows in enumerate(held)])
        _check_size(len(chosen) * sum(t[:1].nbytes for t in shards.source), share)
        validation = shards.source[0][chosen], shards.source[1][chosen]
        clients = shards.choose(rest)
    else:
        parts = [_choose(examples, rows) for examples, rows in zip(task.clients, held, strict=True)]
        validation = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
        clients = [_choose(examples, rows) for examples, rows in zip(task.clients, rest, strict=True)]
        if isinstance(task.clients, Shards):
            x, y = (torch.cat(column) for column in zip(*clients, strict=True))
            clients = Shards(x, y, [len(rows) for rows in rest])
    return replace(task, clients=clients, validation=validation)


def _key(seed: int, *parts: int) -> int:
    return key(seed, Stream.VALIDATION, *parts)


def _count(share: float, n: int, task: Task) -> int:
    count = round(share * n)
    if not 0 < count < n:
        raise BadInput(
            f"--validation {share}: that is {count} of the {n} training examples of task {task.name!r}; some must be"
            " for validation, and some for training"
        )
    return count


def _check_size(nbytes: int, share: float) -> None:
    check_memory(nbytes, f"--validation {share}", "use a smaller share")


def _choose(examples: Examples, rows: Indices) -> Examples:
    at: Tensor = torch.from_numpy(rows)
    return examples[0][at], examples[1][at]
