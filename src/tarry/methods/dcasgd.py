"""DC-ASGD: Asynchronous Stochastic Gradient Descent with Delay Compensation (Zheng et al., ICML 2017).

    g̃ = g + λ g ⊙ g ⊙ (W_now − W_start)                          Eq. 10, g ⊙ g for the diagonal of the Hessian
    W ← W − η g̃
    constant   λ = λ0                                            DC-ASGD-c
    adaptive   λ = λ0 / √(v + 1e-7),  v ← m v + (1 − m) g ⊙ g     DC-ASGD-a, element by element

The gradient's place is taken by the client's displacement, g = −Δ_k, as AsyncManifold does (M = diag(Δ)²).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.method import Method
from ..core.search_space import Range
from ..parts.checks import at_least, check, decay
from ..parts.endpoint import Rule, StaleUpdate, delay_correction
from ..parts.step import add
from .registry import methods

__all__ = ["dc_asgd"]


def constant_rule(lam: float) -> Rule:
    """DC-ASGD-c."""

    def rule(late: StaleUpdate, state: Any) -> tuple[Tensor, Any]:
        return torch.addcmul(late.delta, late.delta * late.delta, late.drift, value=-lam), state

    return rule


def adaptive_rule(lam: float, m: float) -> Rule:
    """DC-ASGD-a: λ falls where displacements have been large."""

    def rule(late: StaleUpdate, state: Any) -> tuple[Tensor, Any]:
        square = late.delta * late.delta
        v = torch.lerp(square, state["v"], m)
        return torch.addcmul(late.delta, square / torch.sqrt(v + 1e-7), late.drift, value=-lam), {"v": v}

    return rule


@methods.register(
    "dc-asgd",
    paper="Zheng et al. 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation",
    use="Plain asynchronous steps at small client rates, where a first-order correction can be right.",
    space={"eta": Range(0.1, 1.0), "lam": Range(0.01, 2.0, log=True)},
)
def dc_asgd(
    *,
    form: Annotated[
        Literal["constant", "adaptive"], "λ as it is, or scaled by the displacements' mean square"
    ] = "constant",
    lam: Annotated[float | None, "λ0; 0.04 (constant) or 2 (adaptive), as in the paper, when left out"] = None,
    m: Annotated[float, "adaptive: how slowly the mean square forgets"] = 0.95,
    eta: Annotated[float, "η, the server's learning rate"] = 0.4,
) -> Method:
    """Add every arriving displacement, corrected to first order for what the global did meanwhile."""
    check(at_least(0, lam=lam), decay(m=m))
    if form == "constant":
        correct = delay_correction(constant_rule(0.04 if lam is None else lam))
    else:
        correct = delay_correction(adaptive_rule(2.0 if lam is None else lam, m), lambda w: {"v": w.new_zeros(())})
    return Method("dc-asgd", staleness="through the drift G = W_now − W_start", correct=correct, step=add(eta))
