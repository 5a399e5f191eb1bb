"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (Karimireddy et al., ICML 2020).

    client   w   ← w − η_l (g_k(w) − c_k + c)                     from W, K times                Algorithm 1, Eq. 3
             c_k⁺ = g_k(W)                                        option I                                    Eq. 4
             c_k⁺ = c_k − c − Δ_k / (K η_l)                       option II
             Δ_k and Δc_k = c_k⁺ − c_k are sent; c_k ← c_k⁺
    server   W   ← W + η_g mean Δ_k                                                                           Eq. 5
             c   ← c + (|S|/N) mean Δc_k                          S: the cohort, N: all clients

c and all c_k begin at 0. c_k stays with the client; a client whose visit is lost keeps the old one. K and η_l are those
of the client's visit (--lr-schedule). With plain means, as in the paper, c is the mean of all clients' c_k.
`weighting="examples"` weighs both means: c = Σ n_k c_k / Σ n_k over all clients, whose sizes the server learns from
their first updates (for a client without one it takes the mean size, and c_k = 0). Then c is 0 where Σ n_k ∇f_k is,
which a plain mean would not be.

The paper's local step is plain SGD. --momentum applies to the corrected gradient, and option II then divides by η_l
‖a‖₁ instead of K η_l (parts.variates), so that c_k⁺ is still a mean of the visit's gradients. Adam's displacement has
no divisor of this kind: option II rejects it, option I does not.

Option I makes one more pass over the data of the visit's first epoch, at W; running statistics do not change in it.
With fewer --steps than batches, g_k(W) is over the examples that the visit used. Running statistics have no direction:
they are averaged, and the global ones go min(1, η_g) of the way.

Servers that step at each arrival are rejected: these clients need c, which the rounds' aggregate computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.client_table import ClientScalars
from ..core.local_rule import ClientModel, Context, RuleStep, VisitInput, VisitOutput
from ..core.method import Method, ServerView
from ..core.parts import Aggregate
from ..core.state_tree import StateRecord
from ..core.task import Examples
from ..core.tickets import CONTROL, TicketExtras, Update
from ..parts.aggregate import Sums, Weighting, empty_sums, round_mean
from ..parts.rounds import barrier
from ..parts.step import add
from ..parts.variates import CHANGE, VARIATE, Control, VariateRule, VariateState
from .registry import methods

__all__ = ["scaffold"]


class Probe(NamedTuple):
    """The gradients at W of the visit's first epoch."""

    total: Tensor  # their sum, an example at a time
    examples: int
    batches: int


@dataclass(frozen=True)
class OptionI(VariateRule):
    """Option I: one more pass in the first epoch, over which c_k⁺ is the mean gradient at W (Eq. 4)."""

    proximal: Control

    @property
    def passes(self) -> tuple[RuleStep, ...]:
        return self.step, self.probe

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        start, context = super().begin(visit)
        return start, {**context, "probes": min(visit.n_batches, visit.n_steps)}

    def init(self, w: Tensor, context: Context, model: ClientModel) -> VariateState:
        return super().init(w, context, model)._replace(probe=Probe(torch.zeros_like(w), 0, 0))

    def probe(
        self, w: Tensor, batch: Examples, context: Context, state: VariateState, model: ClientModel
    ) -> tuple[Tensor, VariateState, Tensor]:
        total, examples, batches = state.probe
        if batches == context["probes"]:
            return w, state, total[0]  # any number: only losses of the first pass are counted
        g, loss = model.grad(context["start"], batch, still=True)
        n = len(batch[0])
        probe = Probe(torch.add(total, g, alpha=n), examples + n, batches + 1)
        return w, state._replace(probe=probe), loss

    def finish(self, w: Tensor, context: Context, state: VariateState) -> VisitOutput:  # noqa: ARG002
        return self.proximal.change_to(state.probe.total / state.probe.examples, context)


@dataclass(frozen=True)
class ControlState(StateRecord):
    """The sums of the round, and what c is computed from."""

    round: Sums
    sum: Tensor  # Σ mass · c_k over all clients
    sizes: ClientScalars  # the mass of every client that has reported: n_k, or 1
    mass: int  # their sum
    c: Tensor


def controlled_mean(weighting: Weighting) -> Aggregate:
    """Return an aggregate part: at the end of a round, pass on the mean Δ_k (Eq. 5) and compute c for the clients."""
    rounds = round_mean(weighting, carries=frozenset())

    def init(weights: Tensor) -> ControlState:
        zero = weights.new_zeros(())
        return ControlState(empty_sums(weights), sum=zero, sizes=ClientScalars(), mass=0, c=zero)

    def apply(update: Update | None, state: ControlState, view: ServerView) -> tuple[Update | None, ControlState]:
        mean, sums = rounds(update, state.round, view)
        state = replace(state, round=sums)
        if update is not None and CHANGE in update.extras:
            state = add_change(update, state)
        if mean is not None and state.mass:
            known = len(state.sizes)  # c_k of the other N − known clients is 0
            state = replace(state, c=state.sum * (known / (state.mass * view.n_clients)))
        return mean, state

    def add_change(update: Update, state: ControlState) -> ControlState:
        k, mass = update.ticket.client, update.n_examples if weighting == "examples" else 1
        total = state.mass if k in state.sizes else state.mass + mass
        state.sizes[k] = mass
        return replace(state, mass=total, sum=torch.add(state.sum, update.extras[CHANGE], alpha=mass))

    def offer(_: int, state: ControlState, __: ServerView) -> TicketExtras:
        return TicketExtras({VARIATE: state.c})

    c, change = frozenset({VARIATE}), frozenset({CHANGE})
    return Aggregate(
        apply, init, offer, payload_keys=c, must_be_used=c, required_extras=change, dropped_extras=frozenset({CONTROL})
    )


@methods.register(
    "scaffold",
    paper="Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    use="Rounds of many local steps on data that differ from client to client, with clients that come again often.",
)
def scaffold(
    *,
    option: Annotated[Literal["I", "II"], "c_k: the gradient at the received weights, or what the visit's were"] = "II",
    eta: Annotated[float, "η_g, the server's learning rate"] = 1.0,
    weighting: Weighting = "uniform",
) -> Method:
    """Synchronous rounds whose clients correct their gradients for how they differ from the mean of all clients."""
    return Method(
        "scaffold",
        staleness="always 0",
        local=OptionI(Control("I")) if option == "I" else VariateRule(Control()),
        aggregate=controlled_mean(weighting),
        step=add(eta),
        dispatch=barrier(),
    )
