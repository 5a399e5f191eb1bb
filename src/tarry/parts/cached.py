"""Something of every client, kept on the server: a row each in a table, and Σ mass · row beside it.

    nothing_kept(weights)                → kept     no rows, a sum of 0
    keep(kept, client, row, mass=1)      → kept     the client's row is replaced, and so is its share of the sum

The sum is in double precision: what is replaced leaves nothing behind. It costs two passes over one row, however many
clients there are. A client's mass never changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.client_table import Table
from ..core.method import Now
from ..core.tickets import Ticket, Update
from ..vector.blocks import blocks
from ..vector.fused import kernels_for, partition
from ..vector.pool import empty_pooled

__all__ = ["Kept", "keep", "nothing_kept", "passed_on"]

Kept = dict[str, Any]


def nothing_kept(weights: Tensor) -> Kept:
    """No rows yet."""
    return {"rows": Table(), "sum": torch.zeros_like(weights, dtype=torch.float64)}


def keep(kept: Kept, client: int, row: Tensor, *, mass: float = 1.0) -> Kept:
    """The record with this row in the place of the client's last; the table is written to."""
    old, total = kept["rows"].get(client), empty_pooled(kept["sum"])
    if old is not None and (kernels := kernels_for(row, old)) is not None:
        partition((0, len(row))).run(kernels.replaced, kept["sum"], row, old, mass, total)
    else:
        for before, new, gone, out in blocks(kept["sum"], row, row if old is None else old, total):
            torch.add(before, new, alpha=mass, out=out)
            if old is not None:
                out.sub_(gone, alpha=mass)
    kept["rows"].put(client, row)
    return {**kept, "sum": total}


def passed_on(delta: Tensor, counts: dict[str, Any], now: Now) -> Update:
    """A displacement of the global as an update of the moment; `counts`: the examples and steps behind it."""
    ticket = Ticket(-1, -1, -1, now.version, now.time, now.weights, now.weights)
    return Update(ticket, delta.to(now.weights.dtype), counts["examples"], counts["steps"], staleness=0)
