"""FedAsync: Asynchronous Federated Optimization (Xie et al., 2019).

    W ← (1 − α_t) W + α_t W_k,   α_t = α s(τ)                                 Algorithm 1
    s: constant 1;  polynomial (τ + 1)^(−a);  hinge 1 if τ ≤ b else 1 / (a (τ − b) + 1)
    client   local loss + (μ/2) ‖w − W‖²  (optional)

The paper's t − τ counts server steps since the hand-out; here that number is τ itself, 0 = fresh.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ..core.local_rule import LocalRule
from ..core.method import Method
from ..core.search_space import Range
from ..parts.endpoint import trust_position
from ..parts.local import ProximalRule
from ..parts.staleness import constant, hinge, polynomial
from ..parts.step import mix
from .registry import methods

__all__ = ["fedasync"]


@methods.register(
    "fedasync",
    paper="Xie et al. 2019, Asynchronous Federated Optimization",
    use="The asynchronous baseline: any number of clients, no memory; slow clients count for little.",
    space={"alpha": Range(0.1, 0.9), "a": Range(0.0, 1.0)},
)
def fedasync(
    *,
    alpha: Annotated[float, "mixing weight of a fresh update"] = 0.6,
    staleness: Annotated[Literal["polynomial", "constant", "hinge"], "the family of s(τ)"] = "polynomial",
    a: Annotated[float | None, "exponent (polynomial, 0.5 when left out) or slope (hinge, 10)"] = None,
    b: Annotated[float, "hinge: the staleness up to which nothing is lost"] = 4.0,
    mu: Annotated[float, "strength of the client's proximal term"] = 0.0,
) -> Method:
    """Mix every arriving model into the global one, less the staler it is."""
    if staleness == "hinge":
        s = hinge(10.0 if a is None else a, b)
    else:
        s = polynomial(0.5 if a is None else a) if staleness == "polynomial" else constant()
    return Method(
        "fedasync",
        staleness=f"τ = server steps since hand-out; weight α s(τ), s {staleness}",
        local=ProximalRule(mu) if mu else LocalRule(),
        step=mix(alpha, s, flag="alpha"),
        as_correction=trust_position(),
    )
