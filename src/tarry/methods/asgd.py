"""ASGD: asynchronous stochastic gradient descent with local training.

    W ← W + η Δ_k                      on arrival; Δ_k against the weights the client was given

Staleness is ignored: the displacement is trusted whatever the global did meanwhile (AsyncManifold's λ = 0).
"""

from __future__ import annotations

from typing import Annotated

from ..core.method import Method
from ..core.search_space import Range
from ..parts.endpoint import delay_correction, subtract_drift
from ..parts.step import add
from .registry import methods

__all__ = ["asgd"]


@methods.register(
    "asgd",
    paper="Mishchenko et al. 2022, Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays",
    use="A first asynchronous baseline: no memory, no weighing; it suffers where some clients are much slower.",
    space={"eta": Range(0.1, 1.0)},
)
def asgd(
    *, eta: Annotated[float, "η, the server's learning rate; 1/clients makes a round of equals FedAvg"] = 0.4
) -> Method:
    """Add every arriving displacement to the global weights, however old."""
    return Method("asgd", step=add(eta), as_correction=delay_correction(subtract_drift(0.0)))
