"""Client rules that correct gradients for the drift of many local steps.

    Control   g + c − c_k                    c_k: the client's mean gradient, c: the mean of all c_k       SCAFFOLD
    Dual      g − λ_k + α (w − w_start)      λ_k: the client's gradient at its last result                 FedDyn
    Normal    g + μ (w − w_start)            and the client uploads ‖a_k‖₁                                 FedNova

A variate is a proximal loss (parts.proximal), known by its gradient: `added_gradient` is the term that it adds to the
client's gradient. `begin` reads payload and memory, and `finish` returns uploads and memory. `VariateRule` is plain
training with one.

‖a‖₁, the reach of a visit's steps: with nothing added, Δ_k = −η Σ_j a_j g_j over the gradients g_j of the visit. a_j =
1 for plain SGD; momentum increases the a_j of early gradients, a proximal term decreases them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.layout import Layout
from ..core.local_rule import ClientModel, Context, VisitInput, VisitOutput
from ..core.optim import Optimizer
from ..core.task import Examples
from .checks import above, at_least, check
from .proximal import BatchProximal, OfWeights, ProximalLoss
from .proximal_rules import ProximalLossRule

__all__ = [
    "CHANGE",
    "NORMALIZATION",
    "REACH",
    "VARIATE",
    "Control",
    "Dual",
    "H",
    "Normal",
    "Variate",
    "VariateRule",
    "VariateState",
    "reach",
]

VARIATE = "c"  # payload: c, over the trained weights; a single 0 at first
CHANGE = "change"  # extra: c_k⁺ − c_k
REACH = "reach"  # extra: ‖a_k‖₁
# Payload keys without a tensor: they bind clients to the one server that they are right with.
H = "h"  # FedDyn's, which is in the weights that are sent
NORMALIZATION = "normalization"  # FedNova's


def reach(optimizer: Optimizer, n_steps: int, *, mu: float = 0.0) -> float:
    """Return ‖a‖₁ of n_steps SGD steps with momentum ρ on a loss with (μ/2) ‖w − w_start‖² added.

    v and x are the momentum and the displacement over −η, step by step, after a first gradient of 1. For the m-th last
    gradient, a_j = (1 − ρ^m)/(1 − ρ) with momentum alone, (1 − η μ)^(m−1) with the proximal term alone.
    """
    x, v, total = 0.0, 1.0, 0.0
    for _ in range(n_steps):
        x += v
        total += abs(x)
        v = optimizer.momentum * v - optimizer.lr * mu * x
    return total


@dataclass(frozen=True)
class Variate(ProximalLoss):
    """A term that is added to a client's gradients, with its uploads and memory. As a loss it is 0 at w_g."""

    zero_at_start: ClassVar[bool] = False  # SCAFFOLD's and FedDyn's point somewhere at w_g, too

    def begin(self, visit: VisitInput) -> dict[str, Any]:
        """Return the constants of the visit."""
        return {"start": visit.layout.params(visit.weights), "n_steps": visit.n_steps}

    def added_gradient(self, w: Tensor, context: Context) -> Tensor:
        """Return the term that is added to the task's gradient, over the trained weights; it is linear in w."""
        raise NotImplementedError

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        return g + self.added_gradient(w, context)

    def on(self, batch: Examples, context: Context, model: ClientModel) -> BatchProximal:  # noqa: ARG002 - the same on all inputs
        start = context["start"]

        def at(w: Tensor) -> tuple[Tensor, Tensor]:
            g = self.added_gradient(w, context)
            return g, torch.dot(g + self.added_gradient(start, context), w - start) / 2

        return OfWeights(model, at)


def _displacement(w: Tensor, context: Context) -> Tensor:
    """Return Δ_k over the trained weights."""
    start: Tensor = context["start"]
    return w[: len(start)] - start


@dataclass(frozen=True)
class Control(Variate):
    """SCAFFOLD's g − c_k + c (Eq. 3), with c_k⁺ = c_k − c − Δ_k / (η ‖a_k‖₁) by option II (Eq. 4).

    With option I the rule computes c_k⁺ itself.
    """

    option: Literal["I", "II"] = "II"
    required_payload: ClassVar[frozenset[str]] = frozenset({VARIATE})
    uploads: ClassVar[frozenset[str]] = frozenset({CHANGE})

    def check(self, layout: Layout, optimizer: Optimizer) -> None:  # noqa: ARG002
        if self.option == "II" and optimizer.name != "sgd":
            raise BadInput(
                f"--optimizer {optimizer.name}: a control variate is a mean gradient, which SCAFFOLD's option II reads"
                " off the displacement of sgd steps; use --optimizer sgd"
            )

    def begin(self, visit: VisitInput) -> dict[str, Any]:
        c = visit.payload[VARIATE]
        c_k = visit.memory.get("c_k", torch.zeros_like(c))
        added = (c - c_k).expand(visit.layout.n_params)
        return {**super().begin(visit), "c": c, "c_k": c_k, "added": added}

    def added_gradient(self, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002 - a constant of the visit
        added: Tensor = context["added"]
        return added

    def finish(self, w: Tensor, context: Context, optimizer: Optimizer, share: float) -> VisitOutput:
        length = optimizer.lr * reach(optimizer, context["n_steps"])  # η ‖a_k‖₁, which is K η_l for plain SGD
        new = torch.sub(share * (context["c_k"] - context["c"]), _displacement(w, context), alpha=1 / length)
        return self.change_to(new, context)

    def change_to(self, c_k: Tensor, context: Context) -> VisitOutput:
        """Return the upload c_k⁺ − c_k and the memory c_k⁺."""
        return VisitOutput({CHANGE: c_k - context["c_k"]}, {"c_k": c_k})


@dataclass(frozen=True)
class Dual(Variate):
    """FedDyn's: −⟨λ_k, w⟩ + (α/2) ‖w − w_start‖² on top of the loss; then λ_k ← λ_k − α Δ_k."""

    alpha: float
    required_payload: ClassVar[frozenset[str]] = frozenset({H})

    def __post_init__(self) -> None:
        check(above(0, alpha=self.alpha))

    def begin(self, visit: VisitInput) -> dict[str, Any]:
        known = super().begin(visit)
        return {**known, "lambda": visit.memory.get("lambda", torch.zeros_like(known["start"]))}

    def added_gradient(self, w: Tensor, context: Context) -> Tensor:
        return torch.sub(w, context["start"]).mul_(self.alpha).sub_(context["lambda"])

    def finish(self, w: Tensor, context: Context, optimizer: Optimizer, share: float) -> VisitOutput:  # noqa: ARG002
        return VisitOutput(memory={"lambda": torch.sub(context["lambda"], _displacement(w, context), alpha=self.alpha)})


@dataclass(frozen=True)
class Normal(Variate):
    """FedNova's: a proximal term if μ is not 0, and the upload ‖a_k‖₁."""

    mu: float = 0.0
    required_payload: ClassVar[frozenset[str]] = frozenset({NORMALIZATION})
    uploads: ClassVar[frozenset[str]] = frozenset({REACH})

    def __post_init__(self) -> None:
        check(at_least(0, mu=self.mu))

    def check(self, layout: Layout, optimizer: Optimizer) -> None:  # noqa: ARG002
        if optimizer.name != "sgd":
            raise BadInput(
                f"--optimizer {optimizer.name}: FedNova divides by how far a client's steps reach, which is defined for"
                " sgd, with or without --momentum; use --optimizer sgd"
            )

    def added_gradient(self, w: Tensor, context: Context) -> Tensor:
        return torch.sub(w, context["start"]).mul_(self.mu)

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        return super().transform_grad(g, w, context) if self.mu else g

    def finish(self, w: Tensor, context: Context, optimizer: Optimizer, share: float) -> VisitOutput:  # noqa: ARG002
        size = reach(optimizer, context["n_steps"], mu=share * self.mu)
        return VisitOutput({REACH: torch.tensor(size, dtype=torch.float64)})


class VariateState(NamedTuple):
    """The state of a visit."""

    inner: Any  # of the optimizer
    optimizer: Optimizer
    probe: Any = None  # of rules that make a second pass


@dataclass(frozen=True)
class VariateRule(ProximalLossRule):
    """Descend the task's gradient with the term of a variate."""

    proximal: Variate

    def init(self, w: Tensor, context: Context, model: ClientModel) -> VariateState:  # noqa: ARG002
        return VariateState(model.init(w), model.optimizer)

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: VariateState, model: ClientModel
    ) -> tuple[Tensor, VariateState, Tensor]:
        w, inner, loss = super().step(w, batch, context, state.inner, model)
        return w, state._replace(inner=inner), loss

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        return self.proximal.transform_grad(g, w, context)

    def finish(self, w: Tensor, context: Context, state: VariateState) -> VisitOutput:
        return self.proximal.finish(w, context, state.optimizer, 1.0)
