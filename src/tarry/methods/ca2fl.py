"""CA²FL: Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update Calibration (Wang et
al., ICLR 2024).

    arrival   Δ ← Δ + (Δ_i − h_i),   h_i ← Δ_i,   S ← S ∪ {i}                 Algorithm 2; h_i = 0 before the first
    after M   v = h + (1/|S|) Σ_{i ∈ S} (Δ_i − h_i)                            the calibrated update
              W ← W + η v
              h ← (1/N) Σ_i h_i                                                over all N clients; then S ← ∅

h in v is the mean at the last step: later updates count in the second term only. Staleness is not weighed.

The text does not say what happens if a client arrives twice before the buffer is full. S is a set: such a client is in
it once, with its latest update minus its h_i of the last step. That is what the accumulated Δ is, since h_i is replaced
at once; |S| is then smaller than M. M counts updates.

The paper tunes η; 1 is what FedEcho's authors (two of them the same) found for CA²FL in all their experiments. Its
variant with a quantized cache is left out. A remembered Δ_i keeps the learning rate it was made with. Running
statistics have no direction: each client's latest are stored with its Δ_i, and the global ones go min(1, η) of the way
to their mean.

On the server, in model sizes: N rows and 4 (two sums in double precision, of now and of the last step) beside the
global and the past ones that clients are training from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from ..core.client_table import ClientScalars
from ..core.method import Method, ServerView
from ..core.parts import Aggregate
from ..core.search_space import Range
from ..core.tickets import CONTROL, Update
from ..parts.cached import RowCache, as_update, replace_row
from ..parts.checks import at_least, check
from ..parts.epochs import storable
from ..parts.step import add
from ..vector.blocks import blocks
from ..vector.fused import kernels_for, partition
from ..vector.pool import empty_pooled
from .registry import methods

__all__ = ["ca2fl"]


@dataclass(frozen=True)
class Calibration(RowCache):
    """The h_i with their sum, and what arrived since the last step."""

    then: Tensor  # the sum of the h_i at the last step
    S: ClientScalars = field(default_factory=ClientScalars)
    count: int = 0
    examples: int = 0
    steps: int = 0


def calibrated_aggregate(size: int) -> Aggregate:
    """Collect M updates, then pass on v."""
    check(at_least(1, buffer=size))

    def init(weights: Tensor) -> Calibration:
        cache = RowCache.empty(weights)
        return Calibration(cache.rows, cache.sum, cache.sum)

    def apply(update: Update | None, state: Calibration, view: ServerView) -> tuple[Update | None, Calibration]:
        if update is None:
            return None, state
        state = replace_row(state, update.ticket.client, storable(update, view))  # h_i ← Δ_i
        state.S[update.ticket.client] = True
        examples, steps = state.examples + update.n_examples, state.steps + update.n_steps
        state = replace(state, count=state.count + 1, examples=examples, steps=steps)
        if state.count < size:
            return None, state
        return as_update(_v(state, view), view, examples, steps), Calibration(state.rows, state.sum, state.sum)

    return Aggregate(apply, init, dropped_extras=frozenset({CONTROL}))


def _v(state: Calibration, view: ServerView) -> Tensor:
    """Return v = h + (1/|S|) Σ (Δ_i − h_i) = then/N + (sum − then)/|S|; for statistics, the way to their mean."""
    n, total, then, s, v = view.layout.n_params, state.sum, state.then, len(state.S), empty_pooled(view.weights)
    rest = 1 / view.n_clients - 1 / s
    if (kernels := kernels_for(total, then)) is not None:
        partition((0, len(total))).run(kernels.weigh, total, then, 1 / s, rest, v)
    else:
        for now_, before, out in blocks(total, then, v):
            out.copy_(torch.div(now_, s).add_(before, alpha=rest))
    if view.layout.stats:
        v[n:] = total[n:] / len(state.rows) - view.weights[n:]
    return v


@methods.register(
    "ca2fl",
    paper="Wang et al. 2024, Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update"
    " Calibration",
    use="FedBuff where clients' data differ much and a server can hold an update of every client.",
    space={"eta": Range(0.1, 3.0, log=True)},
)
def ca2fl(
    *,
    buffer: Annotated[int, "M, the updates a server step waits for"] = 10,
    eta: Annotated[float, "η, the server's learning rate"] = 1.0,
) -> Method:
    """FedBuff without its discount, calibrated by the latest update of every client, cached."""
    return Method(
        "ca2fl",
        staleness="not weighed: a client's latest update counts at every step until its next",
        aggregate=calibrated_aggregate(buffer),
        step=add(eta),
    )
