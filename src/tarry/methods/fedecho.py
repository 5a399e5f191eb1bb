"""FedEcho: Stragglers Can Contribute More: Uncertainty-Aware Distillation for Asynchronous Federated Learning.

    arrival of client i   Δ ← Δ + Δ^i;  y^i ← logits of x_{t−τ} + Δ^i on the unlabeled set U          lines 4–5
                          the current x goes to a random idle client                                     lines 6–7
    after M arrivals      x̂ = x + η Δ / M                                                              lines 10–11
                          Q times: x̂ ← x̂ − η_d Clip(∇f_d(y, ŷ), ν), y the mean of the y^i             lines 12–16
                          f_d = α KL(σ(y) ‖ σ(ŷ)) + (1 − α) CE(ŷ, argmax y), α by the entropy of y       Eq. 3–4

In lines 6–9 the client that replaces the M-th arrival gets x before the step of that arrival. Here all hand-outs of an
instant come after its steps (one rule for all methods, and for simulator and deployment), so that this one client in M
gets x̂, and its staleness is one less.

The distillation is parts.distillation, which may be put around any server: `--method orthofl --distill fedecho`. Eq. 2
is written with a plain gradient (`optimizer=sgd`); Sec. 5.1 gives Adam as the optimizer, which is the default here, on
the clipped gradient. App. B's teacher averages softmax outputs (`teacher=outputs`), Algorithm 1's logits. Our
choices where the paper gives none: Adam's moments are 0 at the beginning of every distillation (`moments=keep`
continues with those before); Q is one pass over U in batches of 50 (the paper gives only the size of U, 2000); the
student runs in eval mode (BatchNorm by its running statistics). η_d is a property of the task: the paper's 3e-6 is for
ResNet-18 on CIFAR, 3e-7 for BERT; a task may name its own. `theorem_rates` gives the rates of Theorem 4.5, for given
constants.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Annotated, Literal, NamedTuple

from ..core.errors import BadInput
from ..core.method import Method
from ..core.optim import AdamNumbers
from ..core.search_space import Range
from ..parts.aggregate import buffer as buffered
from ..parts.distillation import Distillation, with_distillation
from ..parts.step import add
from .registry import methods

__all__ = ["Rates", "fedecho", "theorem_rates"]

PAPER = "Stragglers Can Contribute More: Uncertainty-Aware Distillation for Asynchronous Federated Learning"


class Rates(NamedTuple):
    """The rates of Theorem 4.5: η of the server, η_l of the clients, η_d of the distillation."""

    server: float
    local: float
    distillation: float


def theorem_rates(
    *, rounds: int, steps: int, buffer: int, q: int, gap: float, local_variance: float, global_variance: float
) -> Rates:
    """Return the rates of Theorem 4.5 with all constants 1.

        η = √M,   η_l = √F / √(T K (σ_l² + K σ_g²)),   η_d = F / (√(T³ (σ_l² + K σ_g²)) Q)

    T are the server's rounds, K the local steps of a visit, M the buffer, Q the distillation steps, F = f_1 − f_*, σ_l²
    the variance of a client's gradients and σ_g² that between clients. The printed η_d is read with Q outside the root.
    """
    noise = local_variance + steps * global_variance
    positive = {"rounds": rounds, "steps": steps, "buffer": buffer, "q": q, "gap": gap, "the variances' sum": noise}
    if wrong := [f"{name} {value:g}: must be above 0" for name, value in positive.items() if not value > 0]:
        raise BadInput(wrong)
    local = sqrt(gap / (rounds * steps * noise))
    return Rates(sqrt(buffer), local, gap / (sqrt(rounds**3 * noise) * q))


@methods.register(
    "fedecho",
    paper=PAPER,
    use="Stragglers that hold what others do not, when the server has inputs of the domain without labels.",
    space={"lr": Range(1e-5, 1e-2, log=True)},
)
def fedecho(
    *,
    buffer: Annotated[int, "M, the updates a server step waits for"] = 5,
    eta: Annotated[float, "η, the server's learning rate"] = 1.0,
    lr: Annotated[float | None, "η_d of the distillation; none = the task's own, else 3e-6"] = None,
    q: Annotated[int | None, "Q, distillation steps a server step; none = one pass over the set; 0 = FedBuff"] = None,
    batch: Annotated[int, "unlabeled inputs a distillation step"] = 50,
    alpha: Annotated[Literal["dynamic"] | float, "weight of KL against CE: by the teacher's entropy, or fixed"] = (
        "dynamic"
    ),
    alpha_min: Annotated[float, "α of a teacher without doubt"] = 0.2,
    alpha_max: Annotated[float, "α of a teacher with uniform outputs"] = 0.8,
    clip: Annotated[float | None, "ν, the longest a distillation gradient may be; none = any"] = 5.0,
    optimizer: Annotated[Literal["adam", "sgd"], "of the distillation: Sec. 5.1's, or Eq. 2 as printed"] = "adam",
    teacher: Annotated[Literal["logits", "outputs"], "what is averaged: Algorithm 1's logits, or App. B's softmax"] = (
        "logits"
    ),
    beta1: Annotated[float, "β₁ of the distillation's Adam"] = 0.9,
    beta2: Annotated[float, "β₂ of the distillation's Adam"] = 0.999,
    eps: Annotated[float, "ε of the distillation's Adam"] = 1e-8,
    moments: Annotated[
        Literal["restart", "keep"], "Adam's moments: 0 at every distillation, or those of the one before"
    ] = "restart",
) -> Method:
    """FedBuff, then a distillation from the outputs of all clients' latest models on unlabeled inputs."""
    adam = AdamNumbers(beta1, beta2, eps)
    how = Distillation(lr, q, batch, alpha, clip=clip, optimizer=optimizer, teacher=teacher, adam=adam, moments=moments)
    if alpha == "dynamic":
        how = replace(how, alpha_min=alpha_min, alpha_max=alpha_max)
    plain = Method(
        "fedecho",
        staleness="not used: stale clients teach by their logits, whatever their age",
        aggregate=buffered(buffer),
        step=add(eta),
    )
    return replace(with_distillation(plain, how), wrapper=partial(with_distillation, how=how), inner=plain)
