"""FedAC: Efficient Asynchronous Federated Learning with Prospective Momentum Aggregation and Fine-Grained Correction
(Zang et al., AAAI 2024, doi 10.1609/aaai.v38i15.29603). Not FedAc, the accelerated FedAvg of Yuan and Ma (2020).

    weights   r_i = cos(W^t − W^(t−τ_i), Δ_i)                    the server's way since the hand-out, and the client's
              p_i = max(r_i, floor) / Σ_j max(r_j, floor)         over a buffer of K updates
    server    Δ   = Σ p_i Δ_i
              m ← β1 m + (1 − β1) Δ,   v ← β2 v + (1 − β2) Δ²
              m̂ = β1 m + (1 − β1) Δ                               prospective: where m goes if Δ repeats
              W ← W + η m̂ / (√v + ε)
              c ← c + (K/N) Σ p_i (c_i⁺ − c_i)
    client    w ← w − η_l (g − c_i + c)                           at every step
              c_i⁺ = c_i − c + (w_start − w_end) / (steps · η_l)

The paper's abstract names the three parts; its equations and its authors' code were not available. The box follows a
public re-implementation, with its β1 = 0.6, β2 = 0.9, K = 5, η = 10^−3 and ε = 10^−8. A second has the cosine and the
moments as well. While v is young, an ε this small makes the first step (1 − β1²) / √(1 − β2) = 2.0 times η in every
weight, however small Δ is: with an η for large steps, raise ε. Where the two differ or cannot be right, it is
SCAFFOLD's:

    a fresh update                    met no way of the server's: r_i = 1. There it gets the floor, or 1
    r_i below 0                       the floor, 0.1, as one has it; the other takes |r_i|
    K/N                               is left out there, which makes c N/K times the clients' mean
    c and c_i                         act at every step, as they correct a stochastic gradient; there, once a visit

Clients are SCAFFOLD's (parts.variates, option II, which wants --optimizer sgd): they keep c_i; c begins at 0 and
travels down, c_i⁺ − c_i up. The buffer's mean divides by the sum of the weights. Running statistics go the whole way to
the buffer's mean, without moments.

floor = 1 weighs all alike; `correction=false`, `adaptive=false` (W ← W + η m̂) and β1 = 0 take the rest away: what is
left is FedBuff without its discount for staleness, at η.

On the server, in model sizes: the buffer's two sums, c, m and v, beside the global and the past ones in use, each with
the c of its time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from ..core.local_rule import LocalRule
from ..core.method import Method, ServerView
from ..core.parts import Aggregate, Correct, Step
from ..core.schedule import RateSchedule
from ..core.search_space import OneOf, Range
from ..core.state_tree import StateRecord
from ..core.tickets import CONTROL, TicketExtras, Update
from ..parts.aggregate import Sums, accumulate, empty_sums, mean_update
from ..parts.checks import above, at_least, check, decay, share
from ..parts.manifold import inner
from ..parts.moments import Second, adam
from ..parts.step import scheduled
from ..parts.variates import CHANGE, VARIATE, Control, VariateRule
from .registry import methods

__all__ = ["fedac"]


def similar(floor: float) -> Correct:
    """A correct part: the update's weight becomes max(r_i, floor), 1 where the server has not moved."""

    def apply(update: Update, state: None, view: ServerView) -> tuple[Update, None]:
        params = view.layout.params
        way, own = params(view.weights) - params(update.ticket.anchor), params(update.delta)
        size = torch.sqrt(inner(way, way) * inner(own, own))
        if update.staleness == 0 or size == 0:
            return update, state
        r = (inner(way, own) / size).item()
        return update.replace(weight=update.weight * min(max(r, floor), 1.0)), state

    return Correct(apply, only_scales=True)


@dataclass(frozen=True)
class WeightedBuffer(StateRecord):
    """The sums over the buffer, and the server's control variate."""

    sums: Sums
    c: Tensor  # a number, until clients upload vectors


def weighted_buffer(size: int, *, correction: bool) -> Aggregate:
    """Collect `size` updates, then pass on Σ p_i Δ_i; c moves along with Σ p_i (c_i⁺ − c_i)."""
    check(at_least(1, buffer=size))
    carries = frozenset({CONTROL, CHANGE})

    def init(weights: Tensor) -> WeightedBuffer:
        return WeightedBuffer(empty_sums(weights), weights.new_zeros(()))

    def apply(update: Update | None, state: WeightedBuffer, view: ServerView) -> tuple[Update | None, WeightedBuffer]:
        if update is None:
            return None, state
        sums = accumulate(state.sums, update.replace(weight=1.0), view, update.weight, carries=carries)
        if sums.count < size:
            return None, replace(state, sums=sums)
        mean, c = mean_update(sums, view), state.c
        if CHANGE in mean.extras:
            c = torch.add(c, mean.extras[CHANGE], alpha=size / view.n_clients)  # c + (K/N) Σ p_i (c_i⁺ − c_i)
        return mean, WeightedBuffer(empty_sums(view.weights), c)

    def offer(_: int, state: WeightedBuffer, __: ServerView) -> TicketExtras:
        return TicketExtras({VARIATE: state.c})

    return Aggregate(
        apply, init, offer if correction else None, payload_keys=frozenset({VARIATE} if correction else ())
    )


def prospective(
    eta: float, beta1: float, second: Second | None, eps: float, *, schedule: RateSchedule | None = None
) -> Step:
    """W ← W + η m̂ / (√v + ε), or W + η m̂ where there is no v."""

    def init(weights: Tensor) -> dict[str, Tensor]:
        return dict.fromkeys(("m",) if second is None else ("m", "v"), weights.new_zeros(()))

    def apply(update: Update, state: dict[str, Tensor], view: ServerView) -> tuple[Tensor, dict[str, Tensor]]:
        n, goes = view.layout.n_params, view.displacement(update)
        goes = goes if update.weight == 1 else goes * update.weight
        delta, w = goes[:n], view.weights[:n]
        m = torch.lerp(delta, state["m"], beta1)
        ahead, moments, eta_t = torch.lerp(delta, m, beta1), {"m": m}, scheduled(eta, schedule, view)
        if second is None:
            new = torch.add(w, ahead, alpha=eta_t)
        else:
            v = moments["v"] = second(state["v"], delta)
            new = torch.addcdiv(w, ahead, v.sqrt().add_(eps), value=eta_t)
        return torch.cat([new, view.weights[n:] + goes[n:]]) if view.layout.stats else new, moments

    again = partial(prospective, eta, beta1, second, eps)
    return Step(apply, init, with_schedule=lambda schedule: again(schedule=schedule))


@methods.register(
    "fedac",
    paper="Zang et al. 2024, Efficient Asynchronous Federated Learning with Prospective Momentum Aggregation and "
    "Fine-Grained Correction",
    use="Clients of differing data and speed: late updates count by how far they agree with what the server did since.",
    space={"eta": Range(1e-4, 1e-1, log=True), "eps": OneOf(1e-8, 1e-5, 1e-3)},
)
def fedac(
    *,
    buffer: Annotated[int, "K, the updates a server step waits for"] = 5,
    eta: Annotated[float, "η, the server's rate: about the most a weight moves in a step"] = 1e-3,
    beta1: Annotated[float, "β1, how slowly the mean of displacements forgets; 0 = no momentum"] = 0.6,
    beta2: Annotated[float, "β2, how slowly the mean of their squares forgets"] = 0.9,
    eps: Annotated[float, "ε, beside √v: a weight whose displacements are smaller moves less"] = 1e-8,
    floor: Annotated[float, "the least that an update counts, against 1 for full agreement; 1 = all alike"] = 0.1,
    correction: Annotated[bool, "clients correct their gradients by c − c_i"] = True,
    adaptive: Annotated[bool, "divide by √v + ε, element by element; else W + η m̂"] = True,
) -> Method:
    """FedBuff with weights by agreement, Adam that looks one step ahead, and SCAFFOLD's correction on clients."""
    check(above(0, eta=eta), decay(beta1=beta1, beta2=beta2), share(floor=floor))
    return Method(
        "fedac",
        staleness="through the drift: a late update counts by its cosine with W_now − W_start",
        local=VariateRule(Control()) if correction else LocalRule(),
        correct=similar(floor),
        aggregate=weighted_buffer(buffer, correction=correction),
        step=prospective(eta, beta1, adam(beta2) if adaptive else None, eps),
    )
