"""Server memory of one row per client, with the weighted sum of all rows.

    RowCache.empty(weights)                     no rows, a sum of 0
    replace_row(cache, client, row, mass=1)     replaces the client's row, and its share of the sum
    as_update(delta, view, examples, steps)      a displacement of the global weights as an Update

The sum is Σ mass · row, in double precision, so that a replaced row leaves no rounding error behind that grows. An
arrival costs two passes over one row, however many clients there are. The mass of a client never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

from ..core.client_table import ClientTable
from ..core.method import ServerView
from ..core.state_tree import StateRecord
from ..core.tickets import Ticket, Update
from ..vector.blocks import blocks
from ..vector.fused import kernels_for, partition
from ..vector.pool import empty_pooled

__all__ = ["RowCache", "as_update", "replace_row"]


@dataclass(frozen=True)
class RowCache(StateRecord):
    """A row per client, and Σ mass · row."""

    rows: ClientTable
    sum: Tensor

    @classmethod
    def empty(cls, weights: Tensor) -> Self:
        """Return a cache without rows."""
        return cls(ClientTable(), torch.zeros_like(weights, dtype=torch.float64))


Cache = TypeVar("Cache", bound=RowCache)


def replace_row(cache: Cache, client: int, row: Tensor, *, mass: float = 1.0) -> Cache:
    """Return the cache with this row in place of the client's last one. The table is written to."""
    old, total = cache.rows.get(client), empty_pooled(cache.sum)
    if old is not None and (kernels := kernels_for(row, old)) is not None:
        partition((0, len(row))).run(kernels.replace_row, cache.sum, row, old, mass, total)
    else:
        for before, new, old_row, out in blocks(cache.sum, row, row if old is None else old, total):
            torch.add(before, new, alpha=mass, out=out)
            if old is not None:
                out.sub_(old_row, alpha=mass)
    cache.rows.put(client, row)
    return replace(cache, sum=total)


def as_update(delta: Tensor, view: ServerView, examples: int, steps: int) -> Update:
    """Return a displacement of the global weights as an update of this moment, made from so many examples and steps."""
    ticket = Ticket(-1, -1, -1, view.version, view.time, view.weights, view.weights)
    return Update(ticket, delta.to(view.weights.dtype), examples, steps, staleness=0)
