"""AsyncCurve: Aggregation on Learnable Manifolds for Asynchronous Federated Optimization, Sec. 5.2.

    client   trains an endpoint Θ_i and the control point φ of a curve to it                Algorithm 2: parts.curve
    server   on arrival                                                                     Algorithm 1
             p_i     ← the share of updates that were client i's, or given the time since its last one
             Θ̂       = the corrected endpoint, by orthodyn                                  Sec. 3: parts.endpoint
             φ̂       = (Θ^τ + Θ̂)/2 + R(φ − (Θ^t + Θ_i)/2),  R: Θ_i − Θ^t onto Θ̂ − Θ^τ       Eq. 17: parts.endpoint
             α       = η(τ) / (K p_i), at most 1                                            the dominance penalty
             Θ^(τ+1) = (1−α)² Θ^τ + 2α(1−α) φ̂ + α² Θ̂                                        Eq. 31: parts.manifold
             Θ^SWA   ← mean of it and every Θ^(τ+1), τ ≡ 0 mod c, in the last part of the budget
             Θ^(τ+1) ← Θ^SWA if τ ≡ 0 mod C                                                 periodic SWA, Sec. 5.1
             Θ^(τ+1) is sent with Θ^τ − Θ^(τ+1), Adam's first moments
    answer   Θ^SWA; before there is one, Θ

    η(τ) = η (1 − (1 − low) u),  u = ((τ − 1) mod c + 1)/c        Izmailov et al. 2018: lowest where averages are taken

Errata. The curve is printed with α(1−α) φ̂, whose coefficients do not sum to 1; the default is the true Bézier curve,
the other `curve="printed"`. Algorithm 1 computes φ̂ before the Θ̂ it needs; Θ̂ comes first here. Eq. 32 weighs by w_i,
Algorithm 1 by 1/(K p_i); Algorithm 1 is followed, and w_i cannot be set. T is the run's budget: without one there is no
Θ^SWA.

Sec. 5.1 and the proof (Eq. 42) read p_i as P(i | time since its last update); Algorithm 1 does not. With
`participation="since-last"` p_i is the empirical probability per update, over the classes [2^j, 2^(j+1)) of the number
of updates since the client's last one: the client's arrivals within the class over the updates at which it was in it,
the present one counted in both. With steady delays p_i is then near 1 when a client is due, and every step near η/K.

Out of scope, of the family in Sec. 5.1: FLOCO's simplex needs clients that train several models at once, and its
server no delay correction; FedMRUR's hyperbolic proximal term is `proximal=lorentz`, its normalized server step is not
offered; Riemannian SGD in another ambient manifold needs an optimizer with a retraction, where clients here step in
flat weights; momentum along the manifold needs a transport of the momentum from curve to curve, which the paper leaves
open, so that `--manifold` is rejected with server momentum and adaptive steps.

The clients' optimizer and learning rates are the method's, not the run's. The paper gives η₁ = 1e-3 and η₂ = η₁/10 (its
Fig. 3) and no other number; ρ is from Kwon et al. 2021, the rest from trials on `digits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.client_table import ClientScalars
from ..core.method import Geodesic, Method, ServerView
from ..core.optim import AdamNumbers
from ..core.parts import Correct, Step
from ..core.search_space import Range
from ..core.state_tree import StateRecord
from ..core.tickets import TicketExtras, Update
from ..parts.checks import above, at_least, between, check
from ..parts.curve import SHIFT, ClientProximalName, CurveLearning, CurveName, SolverName
from ..parts.endpoint import delay_correction, dynamic, orthogonal, subtract_drift
from ..parts.manifold import bezier, line, printed_curve, step_along
from ..vector.pool import empty_pooled
from .registry import methods

__all__ = ["asynccurve"]

Participation = Literal["share", "since-last"]
Correction = Literal["orthodyn", "orthograd", "orthopos", "orthostrict", "asgd", "fedasync"]
CURVES: dict[str, Geodesic] = {"bezier": bezier, "printed": printed_curve, "line": line}


@dataclass(frozen=True)
class CurveState(StateRecord):
    """The server's memory from step to step."""

    counts: ClientScalars  # the updates of every client so far, or its `GapCounts`
    total: int  # all updates so far
    shift: Tensor | None  # Θ^τ − Θ^(τ+1) of the last step, if it is sent
    swa: Tensor | None  # Θ^SWA
    models: int  # the models that Θ^SWA is the mean of


class GapCounts(NamedTuple):
    """A client's arrivals, and the updates at which it could have arrived, by class of the time since its last update.

    Class j has the times from 2^j to 2^(j+1) − 1, counted in updates.
    """

    last: int  # the number of updates up to its last one
    arrivals: tuple[int, ...] = ()
    chances: tuple[int, ...] = ()

    def after(self, total: int) -> GapCounts:
        """Return the counts after an arrival that is update number `total`."""
        gap = total - self.last
        j = gap.bit_length() - 1
        n = max(len(self.arrivals), j + 1)
        arrivals = [*self.arrivals, *[0] * (n - len(self.arrivals))]
        chances = [*self.chances, *[0] * (n - len(self.chances))]
        arrivals[j] += 1
        for k in range(j + 1):
            chances[k] += min(1 << k, gap - (1 << k) + 1)
        return GapCounts(total, tuple(arrivals), tuple(chances))

    def share(self, gap: int) -> float:
        """Return the share of the chances in the class of this time that were arrivals."""
        j = gap.bit_length() - 1
        return self.arrivals[j] / self.chances[j]


def correction_part(name: Correction, statistic: str, switch: float | None) -> Correct:
    """Return the delay correction of that name (parts.endpoint)."""
    if name == "orthodyn":
        return dynamic(statistic, switch=switch)
    rules = {
        "orthograd": orthogonal(0.0, 0.0),
        "orthopos": orthogonal(1.0, 0.0),
        "orthostrict": orthogonal(0.0, 1.0),
        "asgd": subtract_drift(0.0),
        "fedasync": subtract_drift(1.0),
    }
    return delay_correction(rules[name])


@dataclass(frozen=True)
class CurveStep:
    """Algorithm 1 from α on."""

    eta: float
    low: float
    cycle: int
    penalty: bool
    swa: float
    periodic: int
    moments: bool
    curve: Geodesic
    participation: Participation = "share"

    def __post_init__(self) -> None:
        check(
            above(0, eta=self.eta),
            between(0, 1, low=self.low),
            at_least(1, cycle=self.cycle),
            at_least(0, swa=self.swa, periodic=self.periodic),
        )

    def part(self) -> Step:
        return Step(
            self.apply,
            self.init,
            self.offer if self.moments else None,
            payload_keys=frozenset({SHIFT}) if self.moments else frozenset(),
            with_geodesic=lambda geodesic: replace(self, curve=geodesic).part(),
        )

    def init(self, _: Tensor) -> CurveState:
        return CurveState(counts=ClientScalars(), total=0, shift=None, swa=None, models=0)

    def apply(self, update: Update, state: CurveState, view: ServerView) -> tuple[Tensor, CurveState]:
        alpha, state = self.alpha(update, state, view)
        here = view.layout.params(view.weights)
        shift = empty_pooled(here) if self.moments else None
        new = step_along(self.curve, view, min(alpha, 1.0), update, left=shift)  # Θ^(τ+1), Eq. 31; left: Θ^τ − Θ^(τ+1)
        swa, models = self.average(new, state, view)
        if self.periodic and swa is not None and view.version % self.periodic == 0:  # Sec. 5.1
            new = swa
            shift = here - view.layout.params(new) if self.moments else None
        return new, replace(state, shift=shift, swa=swa, models=models)

    def alpha(self, update: Update, state: CurveState, view: ServerView) -> tuple[float, CurveState]:
        """α = η(τ) / (K p_i), not yet cut at 1; an update that stands for several clients has no p_i."""
        alpha = self.rate(view.version) * update.weight
        i = update.ticket.client
        if i < 0:
            return alpha, state
        state = replace(state, total=state.total + 1)
        if self.participation == "since-last":
            before = GapCounts(*state.counts.get(i, (0,)))
            now = before.after(state.total)
            state.counts[i] = tuple(now)
            p = now.share(state.total - before.last)
            return alpha / (view.n_clients * p) if self.penalty else alpha, state
        state.counts[i] = state.counts.get(i, 0) + 1
        if self.penalty:
            alpha = alpha * state.total / (view.n_clients * state.counts[i])  # p_i = counts_i / total
        return alpha, state

    def rate(self, tau: int) -> float:
        """η(τ) = η (1 − (1 − low) u), u = ((τ − 1) mod c + 1)/c."""
        return self.eta * (1 - (1 - self.low) * ((tau - 1) % self.cycle + 1) / self.cycle)

    def average(self, new: Tensor, state: CurveState, view: ServerView) -> tuple[Tensor | None, int]:
        """Θ^SWA with Θ^(τ+1) in it, if τ ≡ 0 mod c in the last part of the budget; and the number of its models."""
        if self.swa >= 1 or view.progress < self.swa or view.version % self.cycle != 0:
            return state.swa, state.models
        models = state.models + 1
        return (new if state.swa is None else torch.lerp(state.swa, new, 1 / models)), models

    def offer(self, _: int, state: CurveState, __: ServerView) -> TicketExtras | None:
        return None if state.shift is None else TicketExtras({SHIFT: state.shift})


def swa_weights(weights: Tensor, states: Mapping[str, Any]) -> Tensor:
    """Return Θ^SWA, or Θ while there is none."""
    state: CurveState = states["step"]
    return weights if state.swa is None else state.swa


@methods.register(
    "asynccurve",
    paper="Aggregation on Learnable Manifolds for Asynchronous Federated Optimization",
    use="A few clients in a long run, with twice the traffic and local work to spare; --diagnose shows what it gains.",
    space={"eta": Range(0.1, 1.0), "lr": Range(1e-4, 1e-2, log=True)},
)
def asynccurve(
    *,
    eta: Annotated[float, "η, the most of the way a step goes, before the dominance penalty"] = 0.4,
    low: Annotated[float, "what of η is left at the end of a cycle; 1 keeps it constant"] = 0.5,
    cycle: Annotated[int, "c, the server steps of a cycle of η, and between averages"] = 5,
    penalty: Annotated[bool, "divide by K p_i: frequent clients weigh less"] = True,
    participation: Annotated[
        Participation, "p_i: the share of the updates, or that given the time since the client's last one"
    ] = "share",
    swa: Annotated[float, "the share of the budget after which weights are averaged; 1 never"] = 0.75,
    periodic: Annotated[int, "C, the server steps after which the average becomes the global; 0 never"] = 0,
    curve: Annotated[
        CurveName, "the way the global travels: Bézier, as printed, or straight (no control points)"
    ] = "bezier",
    correction: Annotated[Correction, "what is done about delay"] = "orthodyn",
    statistic: Annotated[str, "orthodyn's: agreement, ratio, progress, or file.py:factory"] = "agreement",
    switch: Annotated[float | None, "orthodyn: the value above which position is trusted; the statistic's own"] = None,
    optimizer: Annotated[SolverName, "the clients'"] = "adam",
    lr: Annotated[float, "η₁, of the endpoint"] = 1e-3,
    control_lr: Annotated[float | None, "η₂, of the control point; lr/10 when left out"] = None,
    moments: Annotated[bool, "begin Adam with the global's last step"] = True,
    beta1: Annotated[float, "β₁ of the clients' Adam"] = 0.9,
    beta2: Annotated[float, "β₂ of the clients' Adam"] = 0.999,
    eps: Annotated[float, "ε of the clients' Adam"] = 1e-8,
    rho: Annotated[float, "ρ, how far asam looks"] = 0.5,
    proximal: Annotated[ClientProximalName, "what holds clients near the weights they received"] = "lorentz",
    mu: Annotated[float, "μ, how strongly"] = 0.1,
    sigma: Annotated[float, "σ of lorentz: smaller holds more, and more so further away"] = 1.0,
    gamma: Annotated[float, "γ, how far control points are made orthogonal to the line"] = 1.0,
) -> Method:
    """Clients learn a curve to where they end; the server walks along it.

    Clients descend by the optimizer and the rates of the method, not by the run's --optimizer, --lr, --momentum,
    --weight-decay, schedule and clipping; asam is a step of Adam at a point further up.
    """
    moments = moments and optimizer != "sgd"
    local = CurveLearning(
        lr=lr,
        control_lr=lr / 10 if control_lr is None else control_lr,
        solver=optimizer,
        rho=rho,
        proximal=proximal,
        mu=mu,
        sigma=sigma,
        gamma=gamma,
        shape=curve,
        adam=AdamNumbers(beta1, beta2, eps),
    )
    return Method(
        "asynccurve",
        staleness=f"through the drift G = W_now − W_start, by {correction}",
        local=local,
        correct=correction_part(correction, statistic, switch),
        step=CurveStep(eta, low, cycle, penalty, swa, periodic, moments, CURVES[curve], participation).part(),
        output_weights=swa_weights,
    )
