"""FLANP: Straggler-Resilient Federated Learning: Leveraging the Interplay Between Statistical Accuracy and System
Heterogeneity (Reisizadeh et al., 2020, arXiv 2012.14453; IEEE JSAIT 2022).

    stage     the n fastest clients take part, n = n_0 at first                                        Algorithm 1
    rounds    of a federated solver, until ‖∇L_n(w)‖² ≤ 2 μ V_ns,   V_ns = c / (n s), or for R rounds
    then      n ← min(2n, N); after the stage of all N, n stays N

L_n is the loss of the n clients with s examples each; V_ns is their statistical accuracy: closer to the minimum of L_n
there is nothing more to learn from them. The paper's solver is FedGATE, with δ_k = 0 at the beginning of each stage:

    client    w ← w − η_l (g − δ_k) at each of K_k steps;   c_k = δ_k − Δ_k / (η_l K_k), its mean gradient
    server    W ← W + Σ (m_k / m) Δ_k;   D = − Σ (m_k / m) Δ_k / (η_l K_k), sent with the next weights
    then      δ_k ← c_k − D, which is δ_k + (−Δ_k / (η_l K_k) − D)

`solver="fedavg"` is δ_k = 0 always. The paper's text and its authors' code were not available: solver, stages and test
are as commonly stated, and were not compared with its Algorithm 1. FedGATE is that without compression and γ = 1.

A server does not know the speeds and the gradient that the algorithm needs. Clients are timed at their first visit
(parts.tiers), in rounds of clients not tried yet; the paper takes the order as known. The gradient is estimated from
the last round: with FedGATE it is D, with FedAvg

    ∇L_n(w) ≈ − Σ m_k Δ_k / Σ m_k η_l K_k          K_k steps at the rate η_l; the client uploads their product
                                                   m_k: the weight of k in the solver's mean, n_k or 1

which for SGD is a mean of all gradients on the way from w (with momentum K_k is ‖a_k‖₁ of parts.variates), and costs
one number per upload. With FedAvg it is 0 at the fixed point. FedGATE wants SGD; with Adam and FedAvg it is a scale and
not a gradient: tune c. s is the mean size of the round's clients. Rounds of first visits, and rounds without an update,
are not tested and do not count as one of R. The test needs μ and c, of which only the product matters, and they are
known for no neural network: a bound that is too small keeps the first n_0 clients for ever. R (`rounds`) ends a stage
at the latest then; the theory, too, has a number of rounds that is the same for all stages. The defaults of μ and c are
ours: with them `digits` with ten clients passes all stages.

Clients as fast as the n-th take part too, since that costs no time; with equal speeds all always take part, and also
with n_0 = N (then no client is timed): with FedAvg it is FedAvg then. If the concurrency is below n, a round's cohort
is drawn among the n. If none of the n fastest is idle, the cohort is drawn from all idle clients.

On the server, in model sizes: the sum of Δ_k for the test, and with FedGATE D, beside FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.idle_clients import IdleClients
from ..core.layout import Layout
from ..core.local_rule import ClientModel, Context, LocalRule, VisitInput, VisitOutput
from ..core.method import Method, ServerView
from ..core.optim import Optimizer
from ..core.parts import Dispatch
from ..core.search_space import Range
from ..core.state_tree import StateRecord
from ..core.task import Examples
from ..core.tickets import TicketExtras, Update
from ..parts.aggregate import Weighting, round_mean
from ..parts.checks import above, at_least, check
from ..parts.tiers import Speeds, at_most_all, draw_among, first_visits, rank_clients, record_first_duration
from ..parts.variates import reach
from .registry import methods

__all__ = ["flanp"]

RATE = "rate"
STAGES = frozenset({"stages"})  # a payload key without a tensor: it binds these clients to this server
DIRECTION, STAGE = "direction", "stage"  # payload: D, a single 0 while there is none; the n of the stage
Solver = Literal["fedgate", "fedavg"]


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
        return VisitOutput({RATE: torch.tensor(_length(context, state), dtype=torch.float64)})


def _length(context: Context, state: Any) -> float:
    """Return η_l K_k."""
    return float(state[1].lr * reach(state[1], context["n_steps"]))


@dataclass(frozen=True)
class GateClient(FlanpClient):
    """FedGATE's client: it descends g − δ_k and remembers its mean gradient c_k and the stage that c_k is of."""

    @property
    def required_payload(self) -> frozenset[str]:
        return STAGES | {DIRECTION, STAGE}

    def check(self, layout: Layout, optimizer: Optimizer) -> None:  # noqa: ARG002
        if optimizer.name != "sgd":
            raise BadInput(
                f"--optimizer {optimizer.name}: FedGATE reads a client's mean gradient off the displacement of sgd"
                " steps; use --optimizer sgd or --method.solver fedavg"
            )

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        w, context = super().begin(visit)
        start, direction, stage = visit.layout.params(w), visit.payload[DIRECTION], visit.payload[STAGE]
        delta = torch.zeros_like(start)
        if direction.ndim and "c_k" in visit.memory:
            same = (visit.memory["stage"] == stage).to(start.dtype)
            delta = same * (visit.memory["c_k"] - direction)
        return w, {**context, "start": start, "delta": delta, "stage": stage}

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002
        return torch.sub(g, context["delta"])

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        start = context["start"]
        c_k = torch.sub(context["delta"], w[: len(start)] - start, alpha=1 / _length(context, state))
        return VisitOutput(super().finish(w, context, state).extras, {"c_k": c_k, "stage": context["stage"]})


@dataclass(frozen=True)
class Stage(StateRecord):
    """The speeds of clients, the n of the stage, and the sums of the last round for the gradient's norm."""

    book: Speeds
    n: int
    sum: Tensor  # Σ m_k Δ_k; with FedGATE Σ m_k Δ_k / (η_l K_k)
    rate: float  # Σ m_k η_l K_k; with FedGATE Σ m_k
    examples: int
    count: int
    tested: bool  # the stage may end after this round
    direction: Tensor  # D of the last round of the stage; a single 0 before, and with FedAvg
    rounds: int = 0  # rounds of the stage that ended with an update

    def without_sums(self, weights: Tensor, *, tested: bool = True) -> Stage:
        """Return the stage before a new round."""
        return replace(self, sum=weights.new_zeros(()), rate=0.0, examples=0, count=0, tested=tested)

    def after_round(self) -> Stage:
        """Return the stage with the round counted, if it brought an update."""
        return replace(self, rounds=self.rounds + 1) if self.tested and self.count else self

    def of(self, n: int, weights: Tensor) -> Stage:
        """Return the stage of the n fastest, before its first round; the same one if n is as before."""
        return self if n == self.n else replace(self, n=n, rounds=0, direction=weights.new_zeros(()))


@dataclass(frozen=True)
class Fastest:
    """Dispatch: a round of the n fastest clients, once no client is training."""

    n0: int
    mu: float
    c: float
    rounds: int | None
    weighting: Weighting
    gate: bool

    def init(self, weights: Tensor) -> Stage:
        none = weights.new_zeros(())
        return Stage(Speeds.empty(), self.n0, none, 0.0, examples=0, count=0, tested=True, direction=none)

    def offer(self, _: int, stage: Stage, __: ServerView) -> TicketExtras:
        return TicketExtras({DIRECTION: stage.direction, STAGE: torch.tensor(stage.n)})

    def observe(self, update: Update, stage: Stage, view: ServerView) -> Stage:
        stage = replace(stage, book=record_first_duration(stage.book, update, view))
        if (stage.n >= view.n_clients and not self.gate) or RATE not in update.extras:
            return stage
        mass, length = update.n_examples if self.weighting == "examples" else 1, update.extras[RATE].item()
        return replace(
            stage,
            sum=torch.add(stage.sum, view.layout.params(update.delta), alpha=mass / length if self.gate else mass),
            rate=stage.rate + (mass if self.gate else mass * length),
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
            stage = stage.after_round()
            if stage.tested and stage.count and self.is_over(stage):
                n = min(2 * n, view.n_clients)
        if self.gate and stage.tested and stage.count:
            stage = replace(stage, direction=stage.sum / -stage.rate)
        stage = stage.of(n, view.weights).without_sums(view.weights)
        stage = replace(stage, book=rank_clients(stage.book, view.n_clients))
        fast = [k for k in roster if stage.book.rank[k] < n]
        return draw_among(roster, fast or list(roster), roster.concurrency, view), stage

    def is_over(self, stage: Stage) -> bool:
        """‖∇L_n(w)‖² ≤ 2 μ c / (n s), or R rounds were made."""
        if self.rounds is not None and stage.rounds >= self.rounds:
            return True
        gradient = torch.linalg.vector_norm(stage.sum).item() / stage.rate
        s = stage.examples / stage.count
        return bool(gradient**2 <= 2 * self.mu * self.c / (stage.n * s))


@methods.register(
    "flanp",
    paper="Reisizadeh et al. 2020, Straggler-Resilient Federated Learning: Leveraging the Interplay Between "
    "Statistical Accuracy and System Heterogeneity",
    use="Clients of very different speed and like data: the fast ones bring the model near, the slow ones finish it.",
    space={"c": Range(0.1, 1000.0, log=True)},
)
def flanp(
    *,
    n0: Annotated[int, "n_0, the fastest clients that begin; all of them = FedAvg"] = 2,
    mu: Annotated[float, "μ, the loss's strong convexity"] = 1.0,
    c: Annotated[float, "c of the statistical accuracy V_ns = c / (n s); larger = more clients sooner"] = 10.0,
    rounds: Annotated[
        int | None, "R, the rounds after which a stage ends at the latest; none = by the test alone"
    ] = None,
    solver: Annotated[Solver, "who learns within a stage: fedgate, as in the paper, or fedavg"] = "fedgate",
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds of the fastest clients; twice as many each time there is no more to learn from them."""
    check(at_least(1, n0=n0), above(0, mu=mu, c=c), at_least(1, rounds=1 if rounds is None else rounds))
    gate = solver == "fedgate"
    who = Fastest(n0, mu, c, rounds, weighting, gate)
    dispatch = Dispatch(who.apply, who.init, observe=who.observe, check_task=at_most_all("n0", n0))
    keys = STAGES | ({DIRECTION, STAGE} if gate else frozenset())
    if gate:
        dispatch = replace(dispatch, offer=who.offer)
    return Method(
        "flanp",
        staleness="always 0",
        local=GateClient() if gate else FlanpClient(),
        aggregate=replace(round_mean(weighting), payload_keys=keys, required_extras=frozenset({RATE})),
        dispatch=dispatch,
    )
