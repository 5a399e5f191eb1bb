"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data (McMahan et al., AISTATS 2017).

    W ← Σ_{k in cohort} (n_k / n) W_k            Algorithm 1; a round lasts as long as its slowest member

A client that is lost during a round is left out of its mean. Staleness is always 0.
"""

from __future__ import annotations

from ..core.method import Method
from ..parts.aggregate import Weighting
from ..parts.rounds import rounds
from .registry import methods

__all__ = ["fedavg"]


@methods.register(
    "fedavg",
    paper="McMahan et al. 2017, Communication-Efficient Learning of Deep Networks",
    use="Clients of about one speed, or to compare with: a round lasts as long as its slowest member.",
)
def fedavg(
    *,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds: wait for the whole cohort, then average its weights."""
    return rounds("fedavg", weighting)
