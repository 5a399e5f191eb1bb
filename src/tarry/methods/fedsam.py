"""FedSAM: Generalized Federated Learning via Sharpness Aware Minimization (Qu et al., ICML 2022).
FedASAM: Improving Generalization in Federated Learning by Seeking Flat Minima (Caldarola et al., ECCV 2022).

    client, per step   g = ∇L(w)
                       ε = ρ g / ‖g‖                            fedsam, SAM: Foret et al. 2021
                       ε = ρ T² g / ‖T g‖,  T = |w| + η         fedasam, ASAM: Kwon et al. 2021
                       w ← w − γ ∇L(w + ε)                      on the same batch, through the client's optimizer
    server             as FedAvg

ρ = 0 is FedAvg. Norms run over all trained weights. Running statistics change in the pass at w only; the reported loss
is L(w). FedASAM's authors' code scales tensors called weight alone (T = 1 for biases); here, as in the formula, all are
scaled.

The papers tune ρ and η by data set. The defaults are those that SAM (ρ = 0.05) and ASAM (ρ = 0.5, η = 0.01: also those
of FedASAM's code) were published with. FedSOL compares with ρ = 0.1 and ρ = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from ..core.local_rule import ClientModel, Context, LocalRule
from ..core.method import Method
from ..core.search_space import OneOf
from ..core.task import Examples
from ..parts.aggregate import Weighting
from ..parts.checks import at_least, check
from ..parts.rounds import rounds
from ..parts.sharpness import ascend, ascended_adaptively
from .registry import methods

__all__ = ["SharpnessAware", "fedasam", "fedsam"]


@dataclass(frozen=True)
class SharpnessAware(LocalRule):
    """Descend the gradient at w + ε, with the ε of SAM, or of ASAM if there is an η."""

    rho: float
    eta: float | None = None

    def step(
        self,
        w: Tensor,
        batch: Examples,
        context: Context,  # noqa: ARG002
        state: Any,
        model: ClientModel,
    ) -> tuple[Tensor, Any, Tensor]:
        g, loss = model.grad(w, batch)
        if self.eta is None:
            up = ascend(w, g, rho=self.rho)
        else:
            up = ascended_adaptively(w, g, rho=self.rho, eta=self.eta)
        g, _ = model.grad(up, batch, still=True)
        w, state = model.apply_gradient(w, g, state)
        return w, state, loss


@methods.register(
    "fedsam",
    paper="Qu et al. 2022, Generalized Federated Learning via Sharpness Aware Minimization",
    use="Rounds whose clients overfit small data of their own, when they can pay for twice the passes.",
    space={"rho": OneOf(0.01, 0.02, 0.05, 0.1, 0.2, 0.5)},
)
def fedsam(
    *,
    rho: Annotated[float, "ρ, how far up gradients are taken; 0 is FedAvg"] = 0.05,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds whose clients look for flat minima: gradients are taken further up the slope."""
    check(at_least(0, rho=rho))
    return rounds("fedsam", weighting, local=SharpnessAware(rho) if rho else LocalRule())


@methods.register(
    "fedasam",
    paper="Caldarola et al. 2022, Improving Generalization in Federated Learning by Seeking Flat Minima",
    use="Where fedsam would do, and the layers' weights are of unlike sizes.",
    space={"rho": OneOf(0.05, 0.1, 0.5, 0.7, 1.0, 2.0)},
)
def fedasam(
    *,
    rho: Annotated[float, "ρ, how far up gradients are taken, in sizes of the weights; 0 is FedAvg"] = 0.5,
    eta: Annotated[float, "η, by how much a weight of 0 counts"] = 0.01,
    weighting: Weighting = "examples",
) -> Method:
    """FedSAM in sizes of the weights: the larger a weight, the further up its gradient is taken."""
    check(at_least(0, rho=rho, eta=eta))
    return rounds("fedasam", weighting, local=SharpnessAware(rho, eta) if rho else LocalRule())
