"""HFL: Stragglers Are Not Disaster: A Hybrid Federated Learning Algorithm with Delayed Gradients (Li et al., 2021).

    kernel    ŵ   = Σ_{k ∈ S_1} (n_k / n) w_k                     S_1: who answered within the round
    updater   ĝ_i = g_i + g_i g_iᵀ (w^t − w^(t−τ_i))              S_2: stragglers; first-order Taylor, g gᵀ for Hessian
              w_i = w^t − ĝ_i,   λ_i = λ_0 e^(−τ_i)
    server    w^(t+1) = (1 − λ̄) ŵ + (1/|S_2|) Σ_{i ∈ S_2} λ_i w_i,   λ̄ = (1/|S_2|) Σ λ_i         AD-SGD

τ_i is the ticket's staleness: rounds since the hand-out. In downhill signs, δ_i = −g_i and G = w^t − w^(t−τ_i):

    δ̂_i = (1 − h δ_i·G) δ_i

so the whole outer product costs one dot product: a straggler who goes the way the others went is shortened, one who
goes against them is lengthened. DC-ASGD keeps the diagonal of the same g gᵀ, which is δ − λ δ ⊙ δ ⊙ G, coordinate by
coordinate. Both are δ where nothing is late; `--method asgd --correct hfl` is the correction on arrival.

The paper's text was not available: this follows Fed-OGD's account of it (Sec. II-C) and two public re-implementations
of one group, which agree on g gᵀ and on λ_0 e^(−τ), and not on S_1 and S_2 (one has no kernel) nor on what a
straggler's model starts from (w^t or w^(t−τ); here w^t, for which the Taylor term was worked out). λ_0 = ½ is theirs. g
is the client's whole displacement, as for dc-asgd; measured in gradients, as the Taylor expansion has it, h is 1/η_l
for a visit of one step, which is large: nothing bounds h δ·G.

A round (parts.epochs) is as long as the fastest client's first visit; a round without an arrival lasts until the
next one. With no straggler in it the server is FedAvg's, with a single client ASGD's of η = 1. With stragglers
alone, ŵ = w^t. Running statistics: the same means, of each one's own values.

On the server, in model sizes: 2 sums beside the global and the past ones that clients are training from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.method import Method, ServerView
from ..core.search_space import Range
from ..core.state_tree import StateRecord
from ..core.tickets import Update
from ..parts.checks import at_least, between, check
from ..parts.endpoint import Rule, StaleUpdate, delay_correction
from ..parts.epochs import EpochServer, at_epoch_ends, epoch_aggregate, storable
from ..parts.manifold import inner
from .registry import methods

__all__ = ["hfl"]


def taylor(h: float) -> Rule:
    """δ̂ = (1 − h δ·G) δ."""

    def rule(late: StaleUpdate, state: Any) -> tuple[Tensor, Any]:
        return late.delta * (1 - h * inner(late.delta, late.drift)), state

    return rule


@dataclass(frozen=True)
class HybridSums(StateRecord):
    """The sums of the epoch under way."""

    kernel: Tensor  # Σ n_k Δ_k over S_1
    n: float  # Σ n_k
    updater: Tensor  # Σ λ_i Δ_i over S_2
    lam: float  # Σ λ_i
    count: int  # updates of S_2


@dataclass(frozen=True)
class Hybrid(EpochServer):
    """The sums over S_1, by examples, and over S_2, by λ_i."""

    lam: float

    def init(self, weights: Tensor) -> HybridSums:
        zero = torch.zeros_like(weights)
        return HybridSums(zero, n=0.0, updater=zero, lam=0.0, count=0)

    def on_update(self, update: Update, late: bool, sums: HybridSums, view: ServerView) -> HybridSums:
        own = storable(update, view)
        if not late:
            kernel = torch.add(sums.kernel, own, alpha=update.n_examples)
            return replace(sums, kernel=kernel, n=sums.n + update.n_examples)
        lam = self.lam * exp(-update.staleness)
        updater = torch.add(sums.updater, own, alpha=lam)
        return replace(sums, updater=updater, lam=sums.lam + lam, count=sums.count + 1)

    def end_epoch(self, sums: HybridSums, view: ServerView) -> tuple[Tensor | None, HybridSums]:
        if not (sums.n or sums.count):
            return None, sums
        late = max(sums.count, 1)
        kernel = sums.kernel / sums.n if sums.n else _no_move(view)
        move = torch.add(sums.updater / late, kernel, alpha=1 - sums.lam / late)
        return move, self.init(view.weights)


def _no_move(view: ServerView) -> Tensor:
    """Return the move that leaves the global weights unchanged."""
    n = view.layout.n_params
    return torch.cat([torch.zeros_like(view.weights[:n]), view.weights[n:]])


@methods.register(
    "hfl",
    paper="Li et al. 2021, Stragglers Are Not Disaster: A Hybrid Federated Learning Algorithm with Delayed Gradients",
    use="Most clients of about one speed and a few stragglers, whose late work should count a little.",
    space={"lam": Range(0.1, 0.9)},
)
def hfl(
    *,
    lam: Annotated[float, "λ_0: a straggler's share of the step, which falls as e^(−rounds late)"] = 0.5,
    h: Annotated[float, "how much of the Taylor term g gᵀ (w_now − w_start) is added; 0 = none"] = 1.0,
    epoch: Annotated[
        float | None, "how long a round lasts (s); none: as long as the fastest client's first visit"
    ] = None,
) -> Method:
    """Rounds that do not wait: late updates are merged later, corrected to first order and at a small weight."""
    check(between(0, 1, lam=lam), at_least(0, h=h))
    return Method(
        "hfl",
        staleness="τ = server steps (rounds) since hand-out; through the drift G = W_now − W_start, and λ_0 e^(−τ)",
        correct=delay_correction(taylor(h)),
        aggregate=epoch_aggregate(epoch, Hybrid(lam)),
        dispatch=at_epoch_ends(),
    )
