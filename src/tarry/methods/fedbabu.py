"""FedBABU: Toward Enhanced Representation for Federated Image Classification (Oh, Kim, Yun, ICLR 2022).

    w = (w_body, w_head)
    client   w_body ← w_body − η ∇_body f(w_body, w_head)         the head stays as it was initialized    Algorithm 1
    server   W_body ← Σ (n_k / n) w_body,k                        as FedAvg; no client changes W_head
    at last  every client tunes the whole of it on its own examples, or the head or the body alone

The head is the last linear or conv map; normalization layers and running statistics belong to the body. Momentum and
weight decay leave the head alone, too. It travels with the body here, and is counted, though it never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor

from ..core.errors import BadInput
from ..core.layout import Block, Kind, Layout
from ..core.local_rule import ClientModel, Context, LocalRule, VisitInput
from ..core.method import Method, Personalization
from ..core.optim import Optimizer
from ..core.task import Examples
from ..parts.aggregate import Weighting
from ..parts.rounds import rounds
from .registry import methods

__all__ = ["fedbabu"]

TrainedSide = Literal["head", "body"]


@dataclass(frozen=True)
class OneSide(LocalRule):
    """Plain training of the head or of the body; the other side is unchanged to the bit."""

    side: TrainedSide

    def still(self, layout: Layout) -> tuple[Block, ...]:
        """Return the layers that are not trained."""
        return tuple(b for b in layout.layers if (b.kind is Kind.HEAD) != (self.side == "head"))

    def check(self, layout: Layout, optimizer: Optimizer) -> None:  # noqa: ARG002
        still = len(self.still(layout))
        if self.side == "body" and not 0 < still < len(layout.layers):
            why = "all of the model is head" if still else "the model has no linear or conv map, which is the head"
            raise BadInput(f"--method fedbabu: {why}; use --method fedavg")

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        return visit.weights, {"still": self.still(visit.layout)}

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        g, loss = model.grad(w, batch)
        new, state = model.apply_gradient(w, g, state)
        for b in context["still"]:
            new[b.at].copy_(w[b.at])
        return new, state, loss


@methods.register(
    "fedbabu",
    paper="Oh et al. 2022, FedBABU: Toward Enhanced Representation for Federated Image Classification",
    use="Clients with few classes each, who will tune a head of their own; score it with --personalize.",
)
def fedbabu(
    *,
    tune: Annotated[Literal["all", "head", "body"], "what clients tune with --personalize"] = "all",
    weighting: Weighting = "examples",
) -> Method:
    """Rounds that train the body only; the head stays as first drawn until clients tune it (--personalize)."""
    personalization = Personalization(tune=LocalRule() if tune == "all" else OneSide(tune))
    return rounds("fedbabu", weighting, local=OneSide("body"), personalization=personalization)
