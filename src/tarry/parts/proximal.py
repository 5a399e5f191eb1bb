"""Proximal losses L_p(w; w_g): how far a client's model has come from the one it received.

    l2   ½ ‖w − w_g‖²                                     FedProx's, without its μ
    kl   KL(softmax(z_g / T) ‖ softmax(z / T))            z, z_g: outputs of the client's and of the received model

A client may add β L_p to its own loss, or perturb its weights along ∇L_p (FedSOL, Eq. 2 and 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.local import Brief, Context, Functions, Objective, Split

__all__ = ["KL", "L2", "Near", "OfOutputs", "OfWeights", "Proximal", "ProximalLoss", "proximal_loss"]

Proximal = Literal["kl", "l2"]


class Near(Protocol):
    """A proximal loss on one batch, at any weights. Every answer is (∇L_p, L_p)."""

    passes: ClassVar[bool]  # whether a gradient takes a pass through the model

    def gradient(self, w: Tensor, *, still: bool) -> tuple[Tensor, Tensor]:
        """At w; `still`: running statistics stay what they were."""

    def on_head(self, split: Split, w: Tensor) -> tuple[Tensor, Tensor]:
        """At w, after the body's pass at w; the gradient need be right in the head only."""


class ProximalLoss(Protocol):
    """A loss by name: what it keeps for a visit, and what it is on a batch."""

    def begin(self, brief: Brief) -> Context:
        """What every step of the visit may read."""

    def near(self, x: Tensor, context: Context, f: Functions) -> Near:
        """On inputs x. Asked for before the step's first pass: it may load other weights."""


@dataclass(frozen=True)
class OfWeights:
    """A loss of the weights alone: (∇L_p, L_p) in closed form."""

    at: Callable[[Tensor], tuple[Tensor, Tensor]]
    passes: ClassVar[bool] = False

    def gradient(self, w: Tensor, *, still: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - nothing moves
        return self.at(w)

    def on_head(self, split: Split, w: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - outputs do not matter
        return self.at(w)


@dataclass(frozen=True)
class OfOutputs:
    """A loss of the model's outputs on x, held against an aim."""

    f: Functions
    x: Tensor
    aim: Any
    objective: Objective
    passes: ClassVar[bool] = True

    def gradient(self, w: Tensor, *, still: bool) -> tuple[Tensor, Tensor]:
        return self.f.grad(w, (self.x, self.aim), self.objective, still=still)

    def on_head(self, split: Split, w: Tensor) -> tuple[Tensor, Tensor]:
        values: list[Tensor] = []

        def noted(outputs: Tensor, aim: Any) -> Tensor:
            values.append(self.objective(outputs, aim))
            return values[0]

        return split.head_grad(w, self.aim, noted), values[0].detach()


@dataclass(frozen=True)
class L2:
    """½ ‖w − w_g‖²; its gradient is w − w_g."""

    def begin(self, brief: Brief) -> Context:
        return {"received": brief.weights}

    def near(self, x: Tensor, context: Context, f: Functions) -> Near:  # noqa: ARG002 - the same on all inputs
        w_g = f.layout.params(context["received"])

        def at(w: Tensor) -> tuple[Tensor, Tensor]:
            g = w - w_g
            return g, torch.dot(g, g) / 2

        return OfWeights(at)


@dataclass(frozen=True)
class KL:
    """KL(p ‖ q) with p = softmax(z_g/T), q = softmax(z/T) over the last dimension; the mean over all others; no T².

    z_g is what the received model says as it is used: dropout off, its own running statistics.
    """

    temperature: float = 3.0

    def begin(self, brief: Brief) -> Context:  # noqa: ARG002
        return {}

    def near(self, x: Tensor, context: Context, f: Functions) -> Near:  # noqa: ARG002 - f knows the received model
        z_g = f.received(x)
        if z_g.ndim < 2 or z_g.shape[-1] < 2:
            raise BadInput(
                "--method.proximal kl: compares classes, and this model has one output; use --method.proximal l2"
            )
        s = z_g / self.temperature
        return OfOutputs(f, x, s - s.logsumexp(-1, keepdim=True), self.divergence)

    def divergence(self, z: Tensor, log_p: Tensor) -> Tensor:
        """Σ p (log p − z/T) + log Σ e^(z/T).

        In this form the gradient is (q − p)/T with q rounded as p was: exactly 0 at z = z_g. Whoever divides it by its
        norm would else follow rounding errors where a visit begins.
        """
        s = z / self.temperature
        return ((log_p.exp() * (log_p - s)).sum(-1) + s.logsumexp(-1)).mean()


def proximal_loss(name: Proximal, *, temperature: float) -> ProximalLoss:
    """The proximal loss of that name; the temperature is kl's."""
    return L2() if name == "l2" else KL(temperature)
