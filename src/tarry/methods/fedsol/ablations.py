"""The strategies that FedSOL is compared with: A0 and A2 to A6 of Table 12, and the direct projection of Eq. 3.

    A0  L(w)                                  A4  L(w + ε_c) + β L_p(w + ε_c),  ε_c along g_l + β g_p
    A2  L(w) + β L_p(w + ε_p)                 A5  L(w) + β L_p(w)
    A3  L(w + ε_p) + β L_p(w + ε_p)           A6  L(w + ε_p) + β L_p(w)

All make whole passes through the model. A5 needs two where `WithProximalLoss` needs one: its L_p is seen apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.local_rule import ClientModel, Context, LocalRule, VisitOutput
from ...core.task import Examples, Task
from ...parts.perturbation import Perturbation
from ...parts.proximal import ProximalLoss
from ...parts.proximal_rules import ProximalLossRule
from .descent import Direction, PerturbedDescent, ProximalDescent

__all__ = ["A2", "A3", "A4", "A5", "A6", "Plain", "PlainWithVariate", "DirectProjection"]


@dataclass(frozen=True)
class Plain(LocalRule):
    """A0: L(w). The fields change nothing."""

    proximal: ProximalLoss
    perturb: Perturbation
    beta: float = 1.0


@dataclass(frozen=True)
class PlainWithVariate(ProximalLossRule):
    """A0: L(w), under a server (SCAFFOLD, FedDyn, FedNova) that expects the variate of the proximal loss."""

    perturb: Perturbation
    beta: float = 1.0

    def check_task(self, task: Task) -> None:  # noqa: ARG002 - L_p is not computed
        return

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        w, inner, loss = super().step(w, batch, context, state[0], model)
        return w, (inner, state[1]), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        return self.proximal.finish(w, context, state[1], 0.0)


@dataclass(frozen=True)
class A2(PerturbedDescent):
    """L(w) + β L_p(w + ε_p)."""

    adds_proximal_loss: ClassVar[bool] = True

    def direction(self, w: Tensor, batch: Examples, context: Context, model: ClientModel) -> Direction:
        loss_p, passes, g_p, l_p = self.at_w(w, batch, context, model)
        away = self.perturb(w, g_p, context)
        g, loss = passes.grad(w, batch[1])
        there, _ = loss_p.gradient(passes, away)
        return Direction(torch.add(g, there, alpha=self.beta), loss, l_p, g_p)


@dataclass(frozen=True)
class A3(PerturbedDescent):
    """L(w + ε_p) + β L_p(w + ε_p)."""

    adds_proximal_loss: ClassVar[bool] = True

    def direction(self, w: Tensor, batch: Examples, context: Context, model: ClientModel) -> Direction:
        loss_p, passes, g_p, l_p = self.at_w(w, batch, context, model)
        away = self.perturb(w, g_p, context)
        g, loss = passes.grad(away, batch[1])
        there, _ = loss_p.gradient(passes, away)
        return Direction(torch.add(g, there, alpha=self.beta), loss, l_p, g_p)


@dataclass(frozen=True)
class A4(PerturbedDescent):
    """L(w + ε_c) + β L_p(w + ε_c): sharpness-aware minimization of L + β L_p."""

    adds_proximal_loss: ClassVar[bool] = True
    follows_proximal: ClassVar[bool] = False

    def direction(self, w: Tensor, batch: Examples, context: Context, model: ClientModel) -> Direction:
        loss_p, passes, g_p, l_p = self.at_w(w, batch, context, model)
        g_l, _ = passes.grad(w, batch[1])
        away = self.perturb(w, torch.add(g_l, g_p, alpha=self.beta), context)
        g, loss = passes.grad(away, batch[1])
        there, _ = loss_p.gradient(passes, away)
        return Direction(torch.add(g, there, alpha=self.beta), loss, l_p, g_p)


@dataclass(frozen=True)
class A5(ProximalDescent):
    """L(w) + β L_p(w); also what A2, A3, A4 and A6 are without a perturbation."""

    adds_proximal_loss: ClassVar[bool] = True

    def direction(self, w: Tensor, batch: Examples, context: Context, model: ClientModel) -> Direction:
        _, passes, g_p, l_p = self.at_w(w, batch, context, model)
        g, loss = passes.grad(w, batch[1])
        return Direction(torch.add(g, g_p, alpha=self.beta), loss, l_p, g_p)


@dataclass(frozen=True)
class A6(PerturbedDescent):
    """L(w + ε_p) + β L_p(w)."""

    adds_proximal_loss: ClassVar[bool] = True

    def direction(self, w: Tensor, batch: Examples, context: Context, model: ClientModel) -> Direction:
        _, passes, g_p, l_p = self.at_w(w, batch, context, model)
        g, loss = passes.grad(self.perturb(w, g_p, context), batch[1])
        return Direction(torch.add(g, g_p, alpha=self.beta), loss, l_p, g_p)


@dataclass(frozen=True)
class DirectProjection(ProximalDescent):
    """Eq. 3: g_l without its component along g_p where the two conflict, over the whole gradient."""

    @property
    def exact_zero(self) -> bool:
        return True

    def direction(self, w: Tensor, batch: Examples, context: Context, model: ClientModel) -> Direction:
        _, passes, g_p, l_p = self.at_w(w, batch, context, model)
        g, loss = passes.grad(w, batch[1])
        along, size = torch.dot(g, g_p), torch.dot(g_p, g_p)
        share = along.clamp_max(0) / size.clamp_min(torch.finfo(size.dtype).tiny)
        return Direction(torch.sub(g, share * g_p), loss, l_p, g_p)
