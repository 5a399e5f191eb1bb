"""FedAdam, FedYogi and FedAdagrad: Adaptive Federated Optimization (Reddi et al., ICLR 2021). And FedAvgM, of Measuring
the Effects of Non-Identical Data Distribution for Federated Visual Classification (Hsu et al., 2019).

    round    Δ = Σ (n_k / n) Δ_k                             over the cohort, as FedAvg
    server   m ← β1 m + (1 − β1) Δ                           Reddi et al., Algorithm 2
             v ← v + Δ²                                      FedAdagrad
             v ← v − (1 − β2) Δ² sign(v − Δ²)                FedYogi
             v ← β2 v + (1 − β2) Δ²                          FedAdam
             W ← W + η m / (√v + ε)
    or       v ← β v + Δ,   W ← W + η v                      FedAvgM, Hsu et al., Sec. 4.3

ε is the paper's τ, a letter that means staleness here: 10^−3. m begins at 0 and v at ε², the least that Algorithm 2
allows; there is no bias correction. (The code beside the paper begins at v = 0, and its Adam corrects the bias.) β1 and
β2 are the paper's 0.9 and 0.99, β1 = 0 for FedAdagrad. Algorithm 2 prints the cohort's plain mean: weighting="uniform".

η is tuned for every task there, with the client's rate; the defaults lie in the middle of what was found best, which is
10^−2.5 to 1 for FedAdam and FedYogi, 10^−1.5 to 10 for FedAdagrad. FedAvgM's η is Hsu et al.'s 1. They try β from 0 to
0.997, and their experiments use Nesterov's form of what they print (`nesterov`); β = 0.9 is Reddi et al.'s.

All four steps may be put under other servers: `--method fedbuff --step fedadam`.
"""

from __future__ import annotations

from typing import Annotated

from ..core.method import Method
from ..core.search_space import OneOf, Range
from ..parts.aggregate import Weighting
from ..parts.moments import adagrad, adam, adaptive, momentum, yogi
from ..parts.rounds import rounds
from .registry import methods

__all__ = ["fedadagrad", "fedadam", "fedavgm", "fedyogi"]

PAPER = "Reddi et al. 2021, Adaptive Federated Optimization"
ServerRate = Annotated[float, "η, the server's learning rate: about the most a weight moves in a step"]
Beta1 = Annotated[float, "β1, how slowly the mean of displacements forgets"]
Beta2 = Annotated[float, "β2, how slowly the mean of their squares forgets"]
Eps = Annotated[float, "ε (the paper's τ), beside √v; smaller is more adaptive. v begins at ε²"]


@methods.register(
    "fedadam",
    paper=PAPER,
    use="Rounds whose gradients differ much in size from weight to weight: text, embeddings, sparse inputs.",
    space={"eta": Range(1e-3, 10.0, log=True), "eps": OneOf(1e-5, 1e-4, 1e-3, 1e-2, 1e-1)},
)
def fedadam(
    *,
    eta: ServerRate = 0.01,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.99,
    eps: Eps = 1e-3,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds; the server takes the mean displacement for a gradient and steps by Adam."""
    step = adaptive(eta, adam(beta2), beta1=beta1, eps=eps, v0=eps**2)
    return rounds("fedadam", weighting, step=step)


@methods.register(
    "fedyogi",
    paper=PAPER,
    use="As fedadam, where single rounds are noisy: its step sizes grow back more slowly.",
    space={"eta": Range(1e-3, 10.0, log=True), "eps": OneOf(1e-5, 1e-4, 1e-3, 1e-2, 1e-1)},
)
def fedyogi(
    *,
    eta: ServerRate = 0.01,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.99,
    eps: Eps = 1e-3,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds; the server takes the mean displacement for a gradient and steps by Yogi."""
    step = adaptive(eta, yogi(beta2), beta1=beta1, eps=eps, v0=eps**2)
    return rounds("fedyogi", weighting, step=step)


@methods.register(
    "fedadagrad",
    paper=PAPER,
    use="Very sparse gradients, as of linear models on words; its steps only ever get shorter.",
    space={"eta": Range(1e-3, 10.0, log=True), "eps": OneOf(1e-5, 1e-4, 1e-3, 1e-2, 1e-1)},
)
def fedadagrad(
    *, eta: ServerRate = 0.1, beta1: Beta1 = 0.0, eps: Eps = 1e-3, weighting: Weighting = "examples"
) -> Method:
    """Synchronous rounds; the server takes the mean displacement for a gradient and steps by Adagrad."""
    step = adaptive(eta, adagrad(), beta1=beta1, eps=eps, v0=eps**2)
    return rounds("fedadagrad", weighting, step=step)


@methods.register(
    "fedavgm",
    paper="Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution",
    use="Rounds of few clients whose data differ: the direction is averaged over rounds as well.",
    space={"beta": OneOf(0.0, 0.7, 0.9, 0.97, 0.99, 0.997)},
)
def fedavgm(
    *,
    eta: Annotated[float, "η, the server's learning rate"] = 1.0,
    beta: Annotated[float, "β, the server's momentum; 0 is FedAvg"] = 0.9,
    nesterov: Annotated[bool, "step by Δ + β v, as in the paper's experiments, in place of v"] = False,
    weighting: Weighting = "examples",
) -> Method:
    """Synchronous rounds with momentum on the server."""
    return rounds("fedavgm", weighting, step=momentum(eta, beta, nesterov=nesterov))
