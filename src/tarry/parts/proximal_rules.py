"""Local rules around a proximal loss, with the payload and the uploads of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.layout import Layout
from ..core.local_rule import ClientModel, Context, LocalRule, VisitInput, VisitOutput
from ..core.optim import Optimizer
from ..core.task import Examples, Task
from .proximal import ProximalLoss

__all__ = ["ProximalLossRule", "WithProximalLoss"]


@dataclass(frozen=True)
class ProximalLossRule(LocalRule):
    """Base of rules that take gradients of a proximal loss."""

    proximal: ProximalLoss

    def check(self, layout: Layout, optimizer: Optimizer) -> None:
        self.proximal.check(layout, optimizer)

    def check_task(self, task: Task) -> None:
        self.proximal.check_task(task)

    @property
    def required_payload(self) -> frozenset[str]:
        return self.proximal.required_payload

    @property
    def uploads(self) -> frozenset[str]:
        return self.proximal.uploads

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        return visit.weights, self.proximal.begin(visit)

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:  # noqa: ARG002
        return model.init(w), model.optimizer


@dataclass(frozen=True)
class WithProximalLoss(ProximalLossRule):
    """L + β L_p, by one pass a step. The loss that is reported is L."""

    beta: float

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        g, loss = self.proximal.on(batch, context, model).total_gradient(w, batch, self.beta)
        inner, optimizer = state
        w, inner = model.apply_gradient(w, g, inner)
        return w, (inner, optimizer), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        return self.proximal.finish(w, context, state[1], self.beta)
