"""MIFA: Fast Federated Learning in the Presence of Arbitrary Device Unavailability (Gu et al., NeurIPS 2021).

    round t   who is available: K local steps from W, G_i ← (W − w_i)/η_t           Algorithm 1; others: G_i stays
              W ← W − η_t (1/N) Σ_i G_i                                              over all N clients

With one learning rate the two η_t cancel: W ← W + (1/N) Σ_i Δ_i, Δ_i = w_i − W. Under --lr-schedule a remembered update
counts at the rate of the round, not at that of its own visit: the cache holds Δ_i divided by the relative rate of its
hand-out. Clients weigh alike, as in the paper's objective.

--availability and --failure-rate decide who is available: a lost visit leaves the memory unchanged, and a round without
an arrival is a step by memory alone. The clients available at a round's beginning take part in it, up to --concurrency
at random. The paper's rounds have no length; here a round lasts as long as its slowest member, as in FedAvg. With
`epoch` a round lasts that many seconds (parts.epochs): a late client counts with its memory, and its Δ_i, from an older
W, counts in a later round. That is how Fed-OGD's authors run MIFA. A step at each arrival is not offered: it would make
a round's step N times as often.

There is no step before all clients have reported once (in the paper all take part in the first round). So the first
rounds go to clients without a report, all from the first W; the other clients wait. If some client never reports, no
more work is handed out and the run ends at its first weights. `no_wait` takes 0 for clients without a report, and steps
from the beginning.

Running statistics have no direction: each client's latest are remembered, and the global takes the mean of those known.

On the server, in model sizes: N rows and 2 (the sum, in double precision) beside the global.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from ..core import rng
from ..core.client_table import ClientScalars
from ..core.errors import BadInput
from ..core.idle_clients import IdleClients
from ..core.method import Method, ServerView
from ..core.parts import Dispatch
from ..core.state_tree import StateRecord
from ..core.tickets import Update
from ..parts.cached import RowCache, replace_row
from ..parts.epochs import EpochServer, at_epoch_ends, at_rate, epoch_aggregate, per_rate, storable
from .registry import methods

__all__ = ["mifa"]


@dataclass(frozen=True)
class MemoryMean(EpochServer):
    """W ← W − η_t (1/N) Σ G_i at the end of each round. The cache holds the −G_i, which point downhill."""

    steps_at_rate: ClassVar[bool] = True
    wait: bool  # no step before all clients have reported once

    def init(self, weights: Tensor) -> RowCache:
        return RowCache.empty(weights)

    def on_update(self, update: Update, late: bool, G: RowCache, view: ServerView) -> RowCache:  # noqa: ARG002
        return replace_row(G, update.ticket.client, per_rate(storable(update, view), update, view))

    def end_epoch(self, G: RowCache, view: ServerView) -> tuple[Tensor | None, RowCache]:
        known, n = len(G.rows), view.layout.n_params
        if not known or (self.wait and known < view.n_clients):
            return None, G
        move = G.sum / view.n_clients
        if view.layout.stats:
            torch.div(G.sum[n:], known, out=move[n:])
        return at_rate(move, view).to(view.weights.dtype), G


@dataclass(frozen=True)
class FirstReports(StateRecord):
    """The clients that have reported, and the state of the dispatch part that follows."""

    seen: ClientScalars
    then: Any


def all_clients_first(then: Dispatch) -> Dispatch:
    """Rounds of clients that have not reported yet; once all have, the part `then`."""

    def init(weights: Tensor) -> FirstReports:
        return FirstReports(ClientScalars(), then.init(weights))

    def observe(update: Update, state: FirstReports, _: ServerView) -> FirstReports:
        state.seen[update.ticket.client] = True
        return state

    def apply(roster: IdleClients, state: FirstReports, view: ServerView) -> tuple[list[int], FirstReports]:
        if len(state.seen) == view.n_clients:
            chosen, after = then(roster, state.then, view)
            return chosen, replace(state, then=after)
        if view.in_flight:
            return [], state
        new = sorted(k for k in roster if k not in state.seen)
        chosen = sorted(new[i] for i in rng.permutation(view.key, len(new))[: roster.concurrency])
        for k in chosen:
            roster.remove(k)
        return chosen, state

    return Dispatch(apply, init, observe=observe)


@methods.register(
    "mifa",
    paper="Gu et al. 2021, Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
    use="Rounds of clients that come and go, some away for long: absent clients count with their last updates.",
)
def mifa(
    *,
    no_wait: Annotated[bool, "begin at once with 0 for clients not seen yet, instead of waiting for all"] = False,
    epoch: Annotated[float | None, "how long a round lasts (s); none: as long as its slowest member"] = None,
) -> Method:
    """Rounds whose step is the mean of all clients' latest updates, also of absent clients."""
    if epoch is not None and not epoch > 0:
        raise BadInput(f"--method.epoch {epoch}: must be above 0, or none for rounds as long as their slowest member")
    rounds = at_epoch_ends()
    return Method(
        "mifa",
        staleness="not weighed: a client's latest update counts in every round until its next",
        aggregate=epoch_aggregate(inf if epoch is None else epoch, MemoryMean(wait=not no_wait)),
        dispatch=rounds if no_wait else all_clients_first(rounds),
    )
