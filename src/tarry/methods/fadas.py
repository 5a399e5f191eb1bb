"""FADAS: Towards Federated Adaptive Asynchronous Optimization (Wang et al., ICML 2024).

    buffer    Δ ← Δ + Δ_i                                    on each arrival; another client gets W        Algorithm 1
    after M   Δ ← Δ / M
              m ← β1 m + (1 − β1) Δ,   v ← β2 v + (1 − β2) Δ²,   v̂ ← max(v̂, v)                             AMSGrad
              W ← W + η_t m / (√v̂ + ε)
    η_t       = η, or delay-adaptive, with τ_max the longest delay among the M:
              η if τ_max ≤ τ_c, else min(η, 1/τ_max)         `delay="capped"`, as printed
              η if τ_max ≤ τ_c, else η/τ_max                 `delay="scaled"`, as in the authors' code

As printed, the rate changes only where τ_max > 1/η, which is 1000 for the largest η that the authors use: what their
code runs is the scaled form. m, v and v̂ begin at 0. Algorithm 1 has no bias correction; the code corrects m and v̂.
M = 5, β1 = 0.9, β2 = 0.99, ε = 10^−8 and τ_c = 1 are theirs, and so are η = 10^−4, or 10^−3 when it adapts to delays.

The update that this buffer passes on has the largest staleness of those in it. A delay-adaptive step needs that: it is
rejected with another method's aggregate, which averages updates without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from torch import Tensor

from ..core.method import Method, ServerView
from ..core.parts import EACH_ARRIVAL, Aggregate
from ..core.search_space import Range
from ..core.state_tree import StateRecord
from ..core.tickets import Update
from ..parts.aggregate import buffer as buffered
from ..parts.checks import at_least, check
from ..parts.moments import adam, adaptive
from .registry import methods

__all__ = ["fadas"]

DelayedStep = Literal["ignored", "capped", "scaled"]


@dataclass(frozen=True)
class LongestDelay(StateRecord):
    """The state of the aggregate inside, and the largest staleness in its buffer."""

    inner: Any
    tau_max: int = 0


def with_longest_delay(part: Aggregate) -> Aggregate:
    """Return the aggregate with τ_max as the staleness of the update that it passes on."""

    def init(weights: Tensor) -> LongestDelay:
        return LongestDelay(part.init(weights))

    def apply(update: Update | None, state: LongestDelay, view: ServerView) -> tuple[Update | None, LongestDelay]:
        tau_max = state.tau_max if update is None else max(state.tau_max, update.staleness)
        mean, inner = part(update, state.inner, view)
        if mean is None:
            return None, LongestDelay(inner, tau_max)
        return mean.replace(staleness=tau_max), LongestDelay(inner)

    return replace(part, apply=apply, init=init, keeps_staleness=True)


def rate(eta: float, delay: DelayedStep, tau_c: int) -> Callable[[int], float] | None:
    """Return η_t as a function of τ_max; None: always η."""
    check(at_least(0, tau_c=tau_c))
    if delay == "ignored":
        return None
    if delay == "capped":
        return lambda tau_max: eta if tau_max <= tau_c else min(eta, 1 / tau_max)
    return lambda tau_max: eta if tau_max <= tau_c else eta / tau_max


def needs_longest_delay(method: Method) -> str | None:
    """Return why a delay-adaptive step does not fit; a server that steps at each arrival knows the delay itself."""
    if method.aggregate.keeps_staleness or method.aggregate is EACH_ARRIVAL:
        return None
    return "a delay-adaptive rate goes by the longest delay among pooled updates, which only fadas's aggregate keeps"


@methods.register(
    "fadas",
    paper="Wang et al. 2024, FADAS: Towards Federated Adaptive Asynchronous Optimization",
    use="Asynchronous training of models that want Adam, as transformers do; delay=scaled where some are very late.",
    space={"eta": Range(1e-5, 1e-1, log=True)},
)
def fadas(
    *,
    buffer: Annotated[int, "M, the updates a server step waits for"] = 5,
    eta: Annotated[float | None, "η, the server's rate; none = 1e-4, or 1e-3 when it adapts to delays"] = None,
    beta1: Annotated[float, "β1, how slowly the mean of displacements forgets"] = 0.9,
    beta2: Annotated[float, "β2, how slowly the mean of their squares forgets"] = 0.99,
    eps: Annotated[float, "ε, beside √v̂"] = 1e-8,
    delay: Annotated[
        DelayedStep, "what a delay above τ_c does: nothing, η ≤ 1/τ_max (printed), η/τ_max (the code)"
    ] = "ignored",
    tau_c: Annotated[int, "τ_c, the longest delay that changes nothing"] = 1,
) -> Method:
    """FedBuff without its discount, stepping by AMSGrad; the rate may fall with the longest delay."""
    if eta is None:
        eta = 1e-4 if delay == "ignored" else 1e-3
    late = rate(eta, delay, tau_c)
    step = adaptive(eta, adam(beta2), beta1=beta1, eps=eps, amsgrad=True, late=late)
    return Method(
        "fadas",
        staleness="ignored" if late is None else "τ_max = most server steps since hand-out in a buffer; rate by τ_max",
        aggregate=with_longest_delay(buffered(buffer)),
        step=step if late is None else replace(step, incompatibility=needs_longest_delay),
    )
