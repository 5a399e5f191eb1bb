"""FedBuff: Federated Learning with Buffered Asynchronous Aggregation (Nguyen et al., AISTATS 2022).

    buffer   Δ̄ ← Δ̄ + s(τ_k) Δ_k,   s(τ) = 1 / √(1 + τ)                       Algorithm 1
    after K  W ← W + (η_g / K) Δ̄,   buffer emptied

Δ_k is against the weights the client was given; the mean divides by K, not by the sum of the s. a = 0 turns the
staleness factor off. Running statistics of batch normalization are part of the weights and go the same way: the global
ones move by the discounted mean of the clients' displacements, with η_g. The paper does not mention them, and an η_g
other than 1 moves them too far or too little. The paper's optional user-level differential privacy is left out.
"""

from __future__ import annotations

from typing import Annotated

from ..core.method import Method
from ..core.search_space import Range
from ..parts.aggregate import buffer as buffered
from ..parts.staleness import discount, polynomial
from ..parts.step import add
from .registry import methods

__all__ = ["fedbuff"]


@methods.register(
    "fedbuff",
    paper="Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation",
    use="Many clients in flight, and secure aggregation or few server steps wanted: one step for K updates.",
    space={"eta": Range(0.1, 10.0, log=True)},
)
def fedbuff(
    *,
    buffer: Annotated[int, "K, the updates a server step waits for"] = 10,
    eta: Annotated[float, "η_g, the server's learning rate"] = 1.0,
    a: Annotated[float, "exponent of s(τ) = (1 + τ)^(−a); 0 turns it off"] = 0.5,
) -> Method:
    """Collect K updates, discounted by staleness, then step by their mean."""
    return Method(
        "fedbuff",
        staleness="τ = server steps (buffers emptied) since hand-out; each delta weighs (1 + τ)^(−a)",
        correct=discount(polynomial(a)),
        aggregate=buffered(buffer),
        step=add(eta),
    )
