"""What clients add to their gradients so that many local steps lead nowhere else than few would.

    Control   g + c − c_k                    c_k: what the client's gradient was, c: the mean of all       SCAFFOLD
    Dual      g − λ_k + α (w − w_start)      λ_k: the client's gradient at its last result                 FedDyn
    Normal    g + μ (w − w_start)            and the client tells how far its steps reach, ‖a_k‖₁          FedNova

A variate is apart from the step that descends, so that other rules may use it too: `begin` reads payload and memory,
`added` is the gradient that it adds, in closed form, and `finish` says what is sent and kept. `Varied` is the plain
rule around one.

How far steps reach: without anything added, Δ_k = −η Σ_j a_j g_j over the gradients of the visit. a_j = 1 for plain
SGD; momentum lets early gradients count more, a pull towards the start less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.layout import Layout
from ..core.local_rule import Brief, Context, Functions, LocalRule, Outcome
from ..core.optim import Optimiser
from ..core.task import Examples

__all__ = [
    "CHANGE",
    "NORMALISATION",
    "REACH",
    "VARIATE",
    "Control",
    "Dual",
    "H",
    "Normal",
    "Variate",
    "Varied",
    "reach",
]

VARIATE = "c"  # payload: c, over the trained weights; one 0 for all of them at first
CHANGE = "change"  # extra: c_k⁺ − c_k
REACH = "reach"  # extra: ‖a_k‖₁
# Needed and sent, though nothing travels under these names: clients and a server that make no sense without each other.
H = "h"  # FedDyn's, which is in the weights that are sent
NORMALISATION = "normalisation"  # FedNova's


def reach(optimiser: Optimiser, n_steps: int, *, mu: float = 0.0) -> float:
    """‖a‖₁ of so many SGD steps with momentum ρ on a loss with (μ/2) ‖w − w_start‖² added.

    Summed up from the coefficients: v and x are what a gradient of 1 has made of momentum and displacement (over −η),
    a step at a time. Momentum alone has a_j = (1 − ρ^m)/(1 − ρ) for the m-th last, the pull alone (1 − η μ)^(m−1).
    """
    x, v, total = 0.0, 1.0, 0.0
    for _ in range(n_steps):
        x += v
        total += abs(x)
        v = optimiser.momentum * v - optimiser.lr * mu * x
    return total


@dataclass(frozen=True)
class Variate:
    """What is added to a client's gradients, and the bookkeeping of a visit around it."""

    needs: ClassVar[frozenset[str]] = frozenset()
    gives: ClassVar[frozenset[str]] = frozenset()

    def check(self, optimiser: Optimiser) -> None:
        """Raise BadInput where the visit's optimiser makes no sense."""

    def begin(self, brief: Brief) -> dict[str, Any]:
        """What the visit may read."""
        return {"start": brief.layout.params(brief.weights), "n_steps": brief.n_steps}

    def added(self, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002 - what others override
        """The gradient that goes on top of the task's, over the trained weights."""
        return torch.zeros_like(w)

    def bend(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        return g + self.added(w, context)

    def finish(self, w: Tensor, context: Context, optimiser: Optimiser, share: float = 1.0) -> Outcome:  # noqa: ARG002
        """What is sent and kept after training that ended at w, a whole vector; `share` of it was really added."""
        return Outcome()


def _moved(w: Tensor, context: Context) -> Tensor:
    """Δ_k over the trained weights."""
    start: Tensor = context["start"]
    return w[: len(start)] - start


@dataclass(frozen=True)
class Control(Variate):
    """SCAFFOLD's, with c_k⁺ by option II: c_k − c − Δ_k / (η ‖a_k‖₁), which is the mean of the visit's gradients.

    Of option I all but c_k⁺, which is for the rule to find.
    """

    option: Literal["I", "II"] = "II"
    needs = frozenset({VARIATE})
    gives = frozenset({CHANGE})

    def check(self, optimiser: Optimiser) -> None:
        if self.option == "II" and optimiser.name != "sgd":
            raise BadInput(
                f"--optimiser {optimiser.name}: a control variate is a mean gradient, which SCAFFOLD's option II reads"
                " off the displacement of sgd steps; use --optimiser sgd"
            )

    def begin(self, brief: Brief) -> dict[str, Any]:
        c = brief.payload[VARIATE]
        c_k = brief.memory.get("c_k", torch.zeros_like(c))
        added = (c - c_k).expand(brief.layout.n_params)
        return {**super().begin(brief), "c": c, "c_k": c_k, "added": added}

    def added(self, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002 - the same everywhere
        added: Tensor = context["added"]
        return added

    def finish(self, w: Tensor, context: Context, optimiser: Optimiser, share: float = 1.0) -> Outcome:
        length = optimiser.lr * reach(optimiser, context["n_steps"])
        own = torch.sub(share * (context["c_k"] - context["c"]), _moved(w, context), alpha=1 / length)
        return self.becomes(own, context)

    def becomes(self, c_k: Tensor, context: Context) -> Outcome:
        """The client's new c_k."""
        return Outcome({CHANGE: c_k - context["c_k"]}, {"c_k": c_k})


@dataclass(frozen=True)
class Dual(Variate):
    """FedDyn's: −⟨λ_k, w⟩ + (α/2) ‖w − w_start‖² on top of the loss; then λ_k ← λ_k − α Δ_k."""

    alpha: float
    needs = frozenset({H})

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise BadInput(f"--method.alpha {self.alpha}: must be above 0")

    def begin(self, brief: Brief) -> dict[str, Any]:
        known = super().begin(brief)
        return {**known, "lambda": brief.memory.get("lambda", torch.zeros_like(known["start"]))}

    def added(self, w: Tensor, context: Context) -> Tensor:
        return torch.sub(w, context["start"]).mul_(self.alpha).sub_(context["lambda"])

    def finish(self, w: Tensor, context: Context, optimiser: Optimiser, share: float = 1.0) -> Outcome:  # noqa: ARG002
        return Outcome(memory={"lambda": torch.sub(context["lambda"], _moved(w, context), alpha=self.alpha)})


@dataclass(frozen=True)
class Normal(Variate):
    """FedNova's: a proximal term if μ is not 0, and ‖a_k‖₁ told beside the displacement."""

    mu: float = 0.0
    needs = frozenset({NORMALISATION})
    gives = frozenset({REACH})

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise BadInput(f"--method.mu {self.mu}: must be 0 or more")

    def check(self, optimiser: Optimiser) -> None:
        if optimiser.name != "sgd":
            raise BadInput(
                f"--optimiser {optimiser.name}: FedNova divides by how far a client's steps reach, which is defined for"
                " sgd, with or without --momentum; use --optimiser sgd"
            )

    def added(self, w: Tensor, context: Context) -> Tensor:
        return torch.sub(w, context["start"]).mul_(self.mu)

    def bend(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        return super().bend(g, w, context) if self.mu else g

    def finish(self, w: Tensor, context: Context, optimiser: Optimiser, share: float = 1.0) -> Outcome:  # noqa: ARG002
        size = reach(optimiser, context["n_steps"], mu=share * self.mu)
        return Outcome({REACH: torch.tensor(size, dtype=torch.float64)})


@dataclass(frozen=True)
class Varied(LocalRule):
    """Descends the task's gradient with what a variate adds."""

    variate: Variate

    @property
    def needs(self) -> frozenset[str]:
        return self.variate.needs

    @property
    def gives(self) -> frozenset[str]:
        return self.variate.gives

    def check(self, layout: Layout, optimiser: Optimiser) -> None:  # noqa: ARG002
        self.variate.check(optimiser)

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        return brief.weights, self.variate.begin(brief)

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:  # noqa: ARG002
        return f.init(w), f.optimiser

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        w, inner, loss = super().step(w, batch, context, state[0], f)
        return w, (inner, *state[1:]), loss

    def bend(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        return self.variate.bend(g, w, context)

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:
        return self.variate.finish(w, context, state[1])
