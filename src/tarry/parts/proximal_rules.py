"""Local rules around a proximal loss: what they need and send back is what the loss does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.layout import Layout
from ..core.local_rule import Brief, Context, Functions, LocalRule, Outcome
from ..core.optim import Optimiser
from ..core.task import Examples, Task
from .proximal import ProximalLoss

__all__ = ["ProximalRule", "WithProximalLoss"]


@dataclass(frozen=True)
class ProximalRule(LocalRule):
    """Base of rules that take gradients of a proximal loss."""

    proximal: ProximalLoss

    def check(self, layout: Layout, optimiser: Optimiser) -> None:
        self.proximal.check(layout, optimiser)

    def suits(self, task: Task) -> None:
        self.proximal.suits(task)

    @property
    def needs(self) -> frozenset[str]:
        return self.proximal.needs

    @property
    def gives(self) -> frozenset[str]:
        return self.proximal.gives

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        return brief.weights, self.proximal.begin(brief)

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:  # noqa: ARG002
        return f.init(w), f.optimiser


@dataclass(frozen=True)
class WithProximalLoss(ProximalRule):
    """L + β L_p, by one pass a step. The loss that is reported is L."""

    beta: float

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        g, loss = self.proximal.on(batch, context, f).added(w, batch, self.beta)
        inner, optimizer = state
        w, inner = f.descend(w, g, inner)
        return w, (inner, optimizer), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:
        return self.proximal.finish(w, context, state[1], self.beta)
