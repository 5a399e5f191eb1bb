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
choices where the paper gives none: Adam's moments are 0 at the beginning of every distillation; Q is one pass over U in
batches of 50 (the paper gives only the size of U, 2000); the student runs in eval mode (BatchNorm by its running
statistics). η_d is a property of the task: the paper's 3e-6 is for ResNet-18 on CIFAR, 3e-7 for BERT; a task may name
its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from ..core.method import Method
from ..core.search_space import Range
from ..parts.aggregate import buffer as buffered
from ..parts.distillation import Distillation, with_distillation
from ..parts.step import add
from .registry import methods

__all__ = ["fedecho"]

PAPER = "Stragglers Can Contribute More: Uncertainty-Aware Distillation for Asynchronous Federated Learning"


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
) -> Method:
    """FedBuff, then a distillation from the outputs of all clients' latest models on unlabeled inputs."""
    how = Distillation(lr, q, batch, alpha, clip=clip, optimizer=optimizer, teacher=teacher)
    if alpha == "dynamic":
        how = replace(how, alpha_min=alpha_min, alpha_max=alpha_max)
    plain = Method(
        "fedecho",
        staleness="not used: stale clients teach by their logits, whatever their age",
        aggregate=buffered(buffer),
        step=add(eta),
    )
    return replace(with_distillation(plain, how), wrapper=partial(with_distillation, how=how), inner=plain)
