"""FedNTD: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning (Lee et al., 2022).

    client   min  L_CE + β τ² L_NTD                                          z, z^g: outputs of the client's model and
             L_NTD = KL(q̃^g ‖ q̃)                                             of the one it received
             q̃(c) = e^(z_c/τ) / Σ_{c' ≠ y} e^(z_c'/τ),  c ≠ y                y: the true class
    server   as FedAvg

β = 0 is FedAvg. The paper takes β = τ = 1, and so does FedSOL, which compares with it. τ² keeps the two terms in
proportion, as usual in distillation; one version of the authors' code omits this factor, which is the same at τ = 1.
The received model runs in eval mode: dropout off, its own running statistics. L_CE is the task's loss, and the loss
that is reported. With two classes only one is left, with the same probability in all models: such tasks are rejected.
"""

from __future__ import annotations

from typing import Annotated

from ..core.local_rule import LocalRule
from ..core.method import Method
from ..core.search_space import Range
from ..parts.aggregate import Weighting
from ..parts.checks import above, at_least, check
from ..parts.proximal import NTD
from ..parts.proximal_rules import WithProximalLoss
from ..parts.rounds import rounds
from .registry import methods

__all__ = ["fedntd"]


@methods.register(
    "fedntd",
    paper="Lee et al. 2022, Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
    use="Rounds of classifiers whose clients miss classes, and forget them, at the cost of one more pass a visit.",
    space={"beta": Range(0.1, 10.0, log=True)},
)
def fedntd(
    *,
    beta: Annotated[float, "β, the weight of the distillation; 0 is FedAvg"] = 1.0,
    temperature: Annotated[float, "τ, what outputs are divided by"] = 1.0,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds whose clients keep the received model's outputs for the classes that are not the true one."""
    check(at_least(0, beta=beta), above(0, temperature=temperature))
    local = WithProximalLoss(NTD(temperature, flag="--method fedntd"), beta) if beta else LocalRule()
    return rounds("fedntd", weighting, local=local)
