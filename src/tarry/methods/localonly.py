"""Local-only: every client trains alone, the baseline of personalized federated learning (FedSOL, Table 9).

    client   w_k ← plain training from w_k, visit after visit; at first from the first weights
    server   W = (1/N) Σ_k w_k                       of all N clients; no client trains from it

There is no global model. The weights that are evaluated are the mean of all clients' models, with running statistics;
a client without an arrival counts with the first weights. The score that matters is that of --personalize: of every
client's own latest model, tuned for some more epochs.

Under --lr-decay the rate falls with the server's steps, as for all methods; here these are the arrivals of all clients.
A schedule by=visits counts each client's own: --lr-schedule exponential:factor=0.99,by=visits.

On the server, in model sizes: N rows, beside the global weights and the past ones of open visits; the weights sent to a
client are counted again with its visit. The counted traffic is that of sending models down and up, which a real
deployment of this baseline would not do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.client_table import ClientTable
from ..core.method import Geodesic, Method, Personalization, ServerView
from ..core.parts import Reply, Step
from ..core.state_tree import StateRecord
from ..core.tickets import TicketExtras, Update
from ..parts.cached import RowCache, replace_row
from ..parts.manifold import line, travel
from ..parts.proximal import MOON
from .registry import methods

__all__ = ["local_only"]


@dataclass(frozen=True)
class OwnModels(StateRecord):
    """The first weights, and every client's own model."""

    first: Tensor
    rows: ClientTable


def own_models() -> Reply:
    """Send every client its own model; at its first visit the first weights, whenever that is."""

    def init(weights: Tensor) -> OwnModels:
        return OwnModels(weights, ClientTable())

    def apply(update: Update, state: OwnModels, _: ServerView) -> tuple[None, OwnModels]:
        state.rows.put(update.ticket.client, update.local)
        return None, state

    def offer(client: int, state: OwnModels, _: ServerView) -> TicketExtras:
        row = state.rows.get(client)
        return TicketExtras(weights=state.first if row is None else row)

    def incompatibility(method: Method) -> str | None:
        contrasts = isinstance(getattr(method.local, "proximal", None), MOON)
        return "clients that receive their own previous model have nothing to contrast it with" if contrasts else None

    return Reply(apply, init, offer, incompatibility=incompatibility)


@dataclass(frozen=True)
class Statistics(RowCache):
    """Every client's latest running statistics, with their sum, and the first ones; None before the first step."""

    first: Tensor | None = None


def mean_of_all(along: Geodesic = line) -> Step:
    """W ← W + Δ_k / N: if clients go on from their own ends, the mean of all N models.

    Running statistics become the mean of all clients' latest ones, wherever they started from. For an update that
    stands for several clients they go 1/N of the way.
    """

    def init(weights: Tensor) -> Statistics:
        return Statistics.empty(weights[:0])

    def apply(update: Update, state: Statistics, view: ServerView) -> tuple[Tensor, Statistics]:
        n, N, k = view.layout.n_params, view.n_clients, update.ticket.client
        new = travel(along, view, view.weights + view.displacement(update), update.weight / N, update)
        if not view.layout.stats or k < 0:
            return new, state
        first = state.first
        if first is None:
            first = view.weights[n:].clone()
            state = Statistics(state.rows, torch.zeros_like(first, dtype=torch.float64), first)
        state = replace_row(state, k, update.local[n:].clone())
        new[n:] = torch.add(state.sum, first, alpha=N - len(state.rows)) / N
        return new, state

    return Step(apply, init, with_geodesic=mean_of_all)


@methods.register(
    "local-only",
    paper="Lee et al. 2024, FedSOL (Table 9), where it is the baseline of personalized learning",
    use="To see what federating is worth: clients that never learn from each other. Score it with --personalize.",
)
def local_only() -> Method:
    """Every client trains alone from the first weights; the mean of their models is evaluated, and never sent."""
    return Method(
        "local-only",
        staleness="not used",
        step=mean_of_all(),
        reply=own_models(),
        personalization=Personalization(own=True),
    )
