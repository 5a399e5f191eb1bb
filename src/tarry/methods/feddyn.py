"""FedDyn: Federated Learning Based on Dynamic Regularization (Acar et al., ICLR 2021).

    client   w_k ← argmin F_k(w) − ⟨λ_k, w⟩ + (α/2) ‖w − W‖²      by its local steps, from W             Algorithm 1
             λ_k ← λ_k − α Δ_k                                    the gradient at w_k, where it got there
    server   h   ← h − (α/N) Σ Δ_k                                the cohort's; N: all clients
             W   ← mean w_k − h/α

λ_k and h begin at 0; λ_k stays with the client, and a client whose visit is lost keeps the old one. The server stores
h/α: α cancels. The default is the α of the authors' CIFAR-10 example. Where local steps get nowhere near the argmin
(few steps, small α), −h/α is the sum of all past mean displacements: a momentum that never forgets. In the limit α → 0
the clients are FedAvg's, and the server is not. Means are plain; the authors' code divides α by the client's share of
the examples, and tests the mean of the w_k in W's place. Any --optimizer may look for the argmin. Of running statistics
the server takes the mean.

Clients with λ_k and a server without h would stay near the first weights; a server with h and other clients would add
up displacements for ever. So other servers, or other clients, are rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..core.method import Method, ServerView
from ..core.parts import Aggregate
from ..core.search_space import OneOf
from ..core.state_tree import StateRecord
from ..core.tickets import CONTROL, Update
from ..parts.aggregate import Sums, empty_sums, round_mean
from ..parts.rounds import barrier
from ..parts.variates import Dual, H, VariateRule
from .registry import methods

__all__ = ["feddyn"]


@dataclass(frozen=True)
class DynamicState(StateRecord):
    """The sums of the round, and the server's memory."""

    round: Sums
    past: Tensor  # −h/α


def dynamic_mean() -> Aggregate:
    """Return an aggregate part: when no client is training any more, pass on mean Δ_k − h/α."""
    rounds = round_mean("uniform", carries=frozenset())

    def init(weights: Tensor) -> DynamicState:
        return DynamicState(empty_sums(weights), weights.new_zeros(()))

    def apply(update: Update | None, state: DynamicState, view: ServerView) -> tuple[Update | None, DynamicState]:
        cohort, past = state.round.count + (update is not None), state.past
        mean, sums = rounds(update, state.round, view)
        if mean is not None:
            delta, n = mean.delta.clone(), view.layout.n_params
            past = torch.add(past, delta[:n], alpha=cohort / view.n_clients)  # −h/α + (1/N) Σ Δ_k
            delta[:n] += past
            mean = mean.replace(delta=delta)
        return mean, DynamicState(sums, past)

    h = frozenset({H})
    return Aggregate(apply, init, payload_keys=h, must_be_used=h, dropped_extras=frozenset({CONTROL}))


@methods.register(
    "feddyn",
    paper="Acar et al. 2021, Federated Learning Based on Dynamic Regularization",
    use="Rounds of much local work on data that differ from client to client; uploads no more than FedAvg.",
    space={"alpha": OneOf(0.001, 0.01, 0.1)},
)
def feddyn(
    *,
    alpha: Annotated[float, "α, how strongly clients are held near the received weights"] = 0.01,
) -> Method:
    """Synchronous rounds whose clients' losses are bent until all have their minima in the same place."""
    return Method(
        "feddyn", staleness="always 0", local=VariateRule(Dual(alpha)), aggregate=dynamic_mean(), dispatch=barrier()
    )
