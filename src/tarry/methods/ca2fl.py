"""CA²FL: Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update Calibration (Wang et
al., ICLR 2024).

    arrival   Δ ← Δ + (Δ_i − h_i),   h_i ← Δ_i,   S ← S ∪ {i}                 Algorithm 2; h_i = 0 before the first
    after M   v = h + (1/|S|) Σ_{i ∈ S} (Δ_i − h_i)                            the calibrated update
              W ← W + η v
              h ← (1/N) Σ_i h_i                                                over all N clients; then S ← ∅

h in v is the mean as of the last step: what came since counts in the second term alone. Staleness is not weighed.

What the text leaves open is a client that comes twice before the buffer is full. S is a set: such a client is in it
once, with its latest update against what was cached of it at the last step. That is what the accumulated Δ comes to,
since h_i is replaced at once; |S| is then smaller than M. M counts updates.

The paper tunes η; 1 is what FedEcho's authors (two of them the same) found for CA²FL in all their experiments. Its
variant with a quantised cache is left out. A remembered Δ_i goes on at the learning rate it was made with. Running
statistics have no direction: each client's latest are kept beside its Δ_i, and the global goes min(1, η) of the way to
their mean.

On the server, in model sizes: N rows and 4 (two sums in double precision, of now and of the last step) beside the
global and the past ones that clients are training from.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.client_table import Marks
from ..core.errors import BadInput
from ..core.method import Method, Now, Part
from ..core.tickets import Update
from ..parts.cached import keep, nothing_kept, passed_on
from ..parts.epochs import entry
from ..parts.manifold import CONTROL
from ..parts.step import add
from ..vector.blocks import blocks
from ..vector.fused import kernels_for, partition
from ..vector.pool import empty_pooled
from .registry import methods

__all__ = ["ca2fl"]


def calibrated(size: int) -> Part[Update | None, Update | None]:
    """After M updates, v. `then` is the sum of the h_i at the last step."""
    if size < 1:
        raise BadInput(f"--method.buffer {size}: must be 1 or more")

    def init(weights: Tensor) -> dict[str, Any]:
        kept = nothing_kept(weights)
        return {**kept, "then": kept["sum"], **_empty()}

    def apply(update: Update | None, state: dict[str, Any], now: Now) -> tuple[Update | None, dict[str, Any]]:
        if update is None:
            return None, state
        state = keep(state, update.ticket.client, entry(update, now))
        state["S"][update.ticket.client] = True
        state |= {
            "count": state["count"] + 1,
            "examples": state["examples"] + update.n_examples,
            "steps": state["steps"] + update.n_steps,
        }
        if state["count"] < size:
            return None, state
        return passed_on(_v(state, now), state, now), {**state, "then": state["sum"], **_empty()}

    return Part(apply, init, drops=frozenset({CONTROL}))


def _empty() -> dict[str, Any]:
    return {"S": Marks(), "count": 0, "examples": 0, "steps": 0}


def _v(state: dict[str, Any], now: Now) -> Tensor:
    """then/N + (sum − then)/|S|; for running statistics the way to the mean of everybody's latest."""
    n, total, then, s, v = now.layout.n_params, state["sum"], state["then"], len(state["S"]), empty_pooled(now.weights)
    rest = 1 / now.n_clients - 1 / s
    if (kernels := kernels_for(total, then)) is not None:
        partition((0, len(total))).run(kernels.weighed, total, then, 1 / s, rest, v)
    else:
        for now_, before, out in blocks(total, then, v):
            out.copy_(torch.div(now_, s).add_(before, alpha=rest))
    if now.layout.stats:
        v[n:] = total[n:] / len(state["rows"]) - now.weights[n:]
    return v


@methods.register(
    "ca2fl",
    paper="Wang et al. 2024, Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update"
    " Calibration",
    use="FedBuff where clients' data differ much and a server can hold an update of every client.",
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
        aggregate=calibrated(buffer),
        step=add(eta),
    )
