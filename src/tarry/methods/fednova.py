"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization (Wang et al., NeurIPS
2020).

    client   Δ_k = −η Σ_j a_k,j g_k(w_j)          a_k,j: the weight of gradient j in Δ_k     general rule
             d_k = −Δ_k / ‖a_k‖₁                  their mean (times η), however many steps there were
    server   W   ← W − τ_eff Σ p_k d_k            p_k = n_k / n,   τ_eff = Σ p_k ‖a_k‖₁                  FedNova

    SGD, τ steps   ‖a‖₁ = τ
    momentum ρ     ‖a‖₁ = (τ − ρ (1 − ρ^τ)/(1 − ρ)) / (1 − ρ)
    proximal μ     ‖a‖₁ = (1 − (1 − η μ)^τ) / (η μ)            F_k(w) + (μ/2) ‖w − W‖², as FedProx

With the same number of steps everywhere it is FedAvg. The client uploads ‖a_k‖₁ with Δ_k. The paper gives a_k for
momentum and for the proximal term alone; with both, the coefficients are those of what clients do here: momentum of the
gradient with its pull. (The authors' code pulls after momentum and adds up another a_k; with a pull, its τ_eff is the
mean number of steps.) The paper's a_k has no negative entry; where η μ is so large that there are some, ‖·‖₁ is taken
literally. Server momentum is not in the paper's box: `--step fedavgm`. Of running statistics the server takes the mean.

Adam's displacement is not a fixed sum of gradients: --optimizer adam is rejected. Under other servers these clients
would be plain or FedProx's; so they require this server, and it requires them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..core.method import Method, ServerView
from ..core.parts import Aggregate
from ..core.state_tree import StateRecord
from ..core.tickets import CONTROL, Update
from ..parts.aggregate import Sums, Weighting, accumulate, empty_sums, mean_update
from ..parts.rounds import barrier
from ..parts.variates import NORMALIZATION, REACH, Normal, VariateRule
from .registry import methods

__all__ = ["fednova"]


@dataclass(frozen=True)
class NormalizedSums(StateRecord):
    """The sums of the round, of displacements over ‖a_k‖₁."""

    sums: Sums
    tau: float  # Σ n_k ‖a_k‖₁


def normalized_mean(weighting: Weighting) -> Aggregate:
    """Return an aggregate part: when no client is training any more, pass on τ_eff Σ p_k Δ_k / ‖a_k‖₁."""

    def init(weights: Tensor) -> NormalizedSums:
        return NormalizedSums(empty_sums(weights), tau=0.0)

    def apply(update: Update | None, state: NormalizedSums, view: ServerView) -> tuple[Update | None, NormalizedSums]:
        sums, tau = state.sums, state.tau
        if update is not None:
            mass = update.n_examples if weighting == "examples" else 1
            a = update.extras.get(REACH)
            size = update.n_steps if a is None else a.item()  # without an upload: plain SGD, ‖a‖₁ = steps
            tau += mass * size
            normalized = scale_update(update, 1 / size, view)  # Δ_k / ‖a_k‖₁
            sums = accumulate(sums, normalized, view, mass, carries=frozenset())  # Σ n_k Δ_k / ‖a_k‖₁
        if view.in_flight or not sums.count:
            return None, NormalizedSums(sums, tau)
        return scale_update(mean_update(sums, view), tau / sums.mass, view), init(view.weights)

    word = frozenset({NORMALIZATION})
    return Aggregate(
        apply,
        init,
        payload_keys=word,
        must_be_used=word,
        required_extras=frozenset({REACH}),
        dropped_extras=frozenset({CONTROL}),
    )


def scale_update(update: Update, by: float, view: ServerView) -> Update:
    """Return the update with its displacement times a number; running statistics unchanged."""
    n = view.layout.n_params
    delta = update.delta * by
    return update.replace(delta=torch.cat([delta[:n], update.delta[n:]]) if view.layout.stats else delta)


@methods.register(
    "fednova",
    paper="Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
    use="Rounds whose clients make very different numbers of steps, as with --epochs and unequal data.",
)
def fednova(
    *,
    mu: Annotated[float, "strength of a pull towards the received weights, as FedProx's; 0 is none"] = 0.0,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds; displacements are divided by how far the client's steps reach before they are averaged."""
    return Method(
        "fednova",
        staleness="always 0",
        local=VariateRule(Normal(mu)),
        aggregate=normalized_mean(weighting),
        dispatch=barrier(),
    )
