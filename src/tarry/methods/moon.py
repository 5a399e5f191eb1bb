"""MOON: Model-Contrastive Federated Learning (Li, He, Song, CVPR 2021).

    client   min  ℓ_sup + μ ℓ_con                                                                        Sec. 3.3
             ℓ_con = −log(e^(s(z, z_glob)/τ) / (e^(s(z, z_glob)/τ) + e^(s(z, z_prev)/τ)))
             z, z_glob, z_prev   features of x under the client's model, the one it received, and the one it ended its
                                 previous visit with;  s: cosine
    server   as FedAvg                                                                                   Algorithm 1

μ = 0 is FedAvg. The paper tunes μ (5 on CIFAR-10, 1 on CIFAR-100 and Tiny-ImageNet; its code's default is 1) with
τ = 0.5; FedSOL compares with μ = 0.1.

Features are what goes into the model's last linear or conv map. The paper adds a projection head of two layers to its
models; here the model is taken as it is. The two other models run in eval mode: dropout off, their own running
statistics. ℓ_sup is the task's loss, and the loss that is reported.

Algorithm 1 does not say what the previous model is at a client's first visit. Here there is none, and ℓ_con is 0: a
first visit is plain. So it is in the authors' code in the first round; a client whose first visit is later is
contrasted there with the model that its round began with. The client stores its previous model itself; a client whose
visit is lost keeps the older one.
"""

from __future__ import annotations

from typing import Annotated

from ..core.local_rule import LocalRule
from ..core.method import Method
from ..core.search_space import OneOf
from ..parts.aggregate import Weighting
from ..parts.checks import above, at_least, check
from ..parts.proximal import MOON
from ..parts.proximal_rules import WithProximalLoss
from ..parts.rounds import rounds
from .registry import methods

__all__ = ["moon"]


@methods.register(
    "moon",
    paper="Li et al. 2021, Model-Contrastive Federated Learning",
    use="Rounds of image models whose clients' data differ, when clients can keep a model and pay for two more passes.",
    space={"mu": OneOf(0.1, 1.0, 5.0, 10.0)},
)
def moon(
    *,
    mu: Annotated[float, "μ, the weight of the contrastive loss; 0 is FedAvg"] = 1.0,
    temperature: Annotated[float, "τ, what similarities are divided by"] = 0.5,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds whose clients keep their features near the received model's and off their own last ones."""
    check(at_least(0, mu=mu), above(0, temperature=temperature))
    local = WithProximalLoss(MOON(temperature, flag="--method moon"), mu) if mu else LocalRule()
    return rounds("moon", weighting, local=local)
