"""FedProx: Federated Optimization in Heterogeneous Networks (Li et al., MLSys 2020).

    client   min  F_k(w) + (μ/2) ‖w − W‖²        Eq. 2
    server   as FedAvg

μ = 0 is FedAvg. The paper tunes μ per data set (1 on three of its five, else 0.01 and 0.001).
"""

from __future__ import annotations

from typing import Annotated

from ..core.method import Method
from ..core.search_space import OneOf
from ..parts.aggregate import Weighting
from ..parts.local import ProximalRule
from ..parts.rounds import rounds
from .registry import methods

__all__ = ["fedprox"]


@methods.register(
    "fedprox",
    paper="Li et al. 2020, Federated Optimization in Heterogeneous Networks",
    use="Rounds whose clients drift apart because their data differ or they do unequal work.",
    space={"mu": OneOf(0.001, 0.01, 0.1, 1.0)},
)
def fedprox(
    *,
    mu: Annotated[float, "strength of the pull towards the received weights; 0 is FedAvg"] = 1.0,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds whose clients are held near the weights they received."""
    return rounds("fedprox", weighting, local=ProximalRule(mu))
