"""FLANP: Straggler-Resilient Federated Learning: Leveraging the Interplay Between Statistical Accuracy and System
Heterogeneity (Reisizadeh et al., 2020; IEEE JSAIT 2022).

    stage     the n fastest clients take part, n = n_0 at first                                        Algorithm 1
    rounds    of a federated solver, until ‖∇L_n(w)‖² ≤ 2 μ V_ns,   V_ns = c / (n s)
    then      n ← min(2n, N); after the stage of all N, n stays N

L_n is the loss of the n clients with s examples each; V_ns is their statistical accuracy: closer to the minimum of L_n
there is nothing more to learn from them. The solver is FedAvg, W ← Σ (n_k / n) w_k; the paper's is FedGATE, and it
allows any. The paper's text and its authors' code were not available: stages and test are as commonly stated, and were
not compared with its Algorithm 1.

A server does not know the speeds and the gradient that the algorithm needs. Clients are timed at their first visit
(parts.tiers), in rounds of clients not tried yet; the paper takes the order as known. The gradient is estimated from
the last round,

    ∇L_n(w) ≈ − Σ m_k Δ_k / Σ m_k η_l K_k          K_k steps at the rate η_l; the client uploads their product
                                                   m_k: the weight of k in the solver's mean, n_k or 1

which for SGD is a mean of all gradients on the way from w (with momentum K_k is ‖a_k‖₁ of parts.variates), and costs
one number per upload. It is 0 at the solver's fixed point. With Adam it is a scale and not a gradient: tune c. s is the
mean size of the round's clients. Rounds of first visits, and rounds without an update, are not tested. Only the product
of μ and c matters. Both are the paper's letters; their defaults are ours: with them `digits` with ten clients passes
all stages.

Clients as fast as the n-th take part too, since that costs no time; with equal speeds it is FedAvg, and also with n_0 =
N (then no client is timed). If the concurrency is below n, a round's cohort is drawn among the n. If none of the n
fastest is idle, the cohort is drawn from all idle clients.

On the server, in model sizes: the sum of Δ_k for the test, until all take part, beside FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.idle_clients import IdleClients
from ..core.local_rule import ClientModel, Context, LocalRule, VisitInput, VisitOutput
from ..core.method import Method, ServerView
from ..core.parts import Dispatch
from ..core.state_tree import StateRecord
from ..core.task import Examples
from ..core.tickets import Update
from ..parts.aggregate import Weighting, round_mean
from ..parts.checks import above, at_least, check
from ..parts.tiers import Speeds, at_most_all, draw_among, first_visits, rank_clients, record_first_duration
from ..parts.variates import reach
from .registry import methods

__all__ = ["flanp"]

RATE = "rate"
STAGES = frozenset({"stages"})  # a payload key without a tensor: it binds these clients to this server


@dataclass(frozen=True)
class FlanpClient(LocalRule):
    """Plain training that uploads η_l K (with momentum η_l ‖a‖₁)."""

    @property
    def required_payload(self) -> frozenset[str]:
        return STAGES

    @property
    def uploads(self) -> frozenset[str]:
        return frozenset({RATE})

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        return visit.weights, {"n_steps": visit.n_steps}

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:  # noqa: ARG002
        return model.init(w), model.optimizer

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        w, inner, loss = super().step(w, batch, context, state[0], model)
        return w, (inner, state[1]), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:  # noqa: ARG002
        rate = state[1].lr * reach(state[1], context["n_steps"])
        return VisitOutput({RATE: torch.tensor(rate, dtype=torch.float64)})


@dataclass(frozen=True)
class Stage(StateRecord):
    """The speeds of clients, the n of the stage, and the sums of the last round for the gradient's norm."""

    book: Speeds
    n: int
    sum: Tensor  # Σ m_k Δ_k
    rate: float  # Σ m_k η_l K_k
    examples: int
    count: int
    tested: bool  # the stage may end after this round

    def without_sums(self, weights: Tensor, *, tested: bool = True) -> Stage:
        """Return the stage before a new round."""
        return replace(self, sum=weights.new_zeros(()), rate=0.0, examples=0, count=0, tested=tested)


@dataclass(frozen=True)
class Fastest:
    """Dispatch: a round of the n fastest clients, once no client is training."""

    n0: int
    mu: float
    c: float
    weighting: Weighting

    def init(self, weights: Tensor) -> Stage:
        return Stage(Speeds.empty(), self.n0, weights.new_zeros(()), rate=0.0, examples=0, count=0, tested=True)

    def observe(self, update: Update, stage: Stage, view: ServerView) -> Stage:
        stage = replace(stage, book=record_first_duration(stage.book, update, view))
        if stage.n >= view.n_clients or RATE not in update.extras:
            return stage
        mass = update.n_examples if self.weighting == "examples" else 1
        return replace(
            stage,
            sum=torch.add(stage.sum, view.layout.params(update.delta), alpha=mass),
            rate=stage.rate + mass * update.extras[RATE].item(),
            examples=stage.examples + update.n_examples,
            count=stage.count + 1,
        )

    def apply(self, roster: IdleClients, stage: Stage, view: ServerView) -> tuple[list[int], Stage]:
        if view.in_flight or not len(roster):
            return [], stage
        n = stage.n
        if n < view.n_clients:
            if cohort := first_visits(roster, stage.book, view):
                return cohort, stage.without_sums(view.weights, tested=False)
            if stage.tested and stage.count and self.is_reached(stage):
                n = min(2 * n, view.n_clients)
        stage = replace(stage.without_sums(view.weights), book=rank_clients(stage.book, view.n_clients), n=n)
        fast = [k for k in roster if stage.book.rank[k] < n]
        return draw_among(roster, fast or list(roster), roster.concurrency, view), stage

    def is_reached(self, stage: Stage) -> bool:
        """‖∇L_n(w)‖² ≤ 2 μ c / (n s)."""
        gradient = torch.linalg.vector_norm(stage.sum).item() / stage.rate
        s = stage.examples / stage.count
        return bool(gradient**2 <= 2 * self.mu * self.c / (stage.n * s))


@methods.register(
    "flanp",
    paper="Reisizadeh et al. 2020, Straggler-Resilient Federated Learning: Leveraging the Interplay Between "
    "Statistical Accuracy and System Heterogeneity",
    use="Clients of very different speed and like data: the fast ones bring the model near, the slow ones finish it.",
)
def flanp(
    *,
    n0: Annotated[int, "n_0, the fastest clients that begin; all of them = FedAvg"] = 2,
    mu: Annotated[float, "μ, the loss's strong convexity"] = 1.0,
    c: Annotated[float, "c of the statistical accuracy V_ns = c / (n s); larger = more clients sooner"] = 10.0,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds of the fastest clients; twice as many each time there is no more to learn from them."""
    check(at_least(1, n0=n0), above(0, mu=mu, c=c))
    who = Fastest(n0, mu, c, weighting)
    return Method(
        "flanp",
        staleness="always 0",
        local=FlanpClient(),
        aggregate=replace(round_mean(weighting), payload_keys=STAGES, required_extras=frozenset({RATE})),
        dispatch=Dispatch(who.apply, who.init, observe=who.observe, check_task=at_most_all("n0", n0)),
    )
