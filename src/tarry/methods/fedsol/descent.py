"""Base classes of FedSOL and of the strategies it is compared with: a step along a direction, and its diagnostics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...core.errors import BadInput
from ...core.layout import Layout
from ...core.local_rule import ClientModel, Context, HeadSplit, VisitInput, VisitOutput
from ...core.optim import Optimizer
from ...core.task import Examples
from ...parts.perturbation import Perturbation
from ...parts.proximal import BatchProximal, WholePasses
from ...parts.proximal_rules import ProximalLossRule

__all__ = ["Direction", "PerturbedDescent", "ProximalDescent", "StepState"]


class Direction(NamedTuple):
    """A step's direction and loss; where the proximal loss was computed, its value and gradient at w."""

    g: Tensor
    loss: Tensor
    l_p: Tensor | None = None
    g_p: Tensor | None = None


class StepState(NamedTuple):
    """The state from step to step. `at_start` is a plain bool, so that a first step is traced apart from the others."""

    inner: Any  # of the optimizer
    at_start: bool  # no step was made yet: w = w_g
    sums: Tensor | None  # of L_p and of its cosine, for notes
    optimizer: Optimizer


@dataclass(frozen=True)
class ProximalDescent(ProximalLossRule):
    """Base of the strategies; each defines `direction`, the direction that a step descends along."""

    perturb: Perturbation
    beta: float = 1.0
    adds_proximal_loss: ClassVar[bool] = False  # whether β L_p is a term of what is descended

    def direction(self, w: Tensor, batch: Examples, context: Context, model: ClientModel) -> Direction:
        """Return the direction of a step at w. Running statistics move in its first pass only."""
        raise NotImplementedError

    def gradient_is_zero(self, model: ClientModel) -> bool:
        """Return whether g_p is 0 at w_g. It is not for a model whose outputs differ between training and eval mode."""
        return self.proximal.zero_at_start and model.train_equals_eval

    @property
    def exact_zero(self) -> bool:
        """Return whether rounding errors in g_p would matter while w is w_g. An adaptive perturbation is 0 there."""
        return not self.perturb.adaptive

    def proximal_gradient(
        self, loss: BatchProximal, passes: HeadSplit, w: Tensor, context: Context, model: ClientModel
    ) -> tuple[Tensor, Tensor]:
        """Return (g_p, L_p) at w. While w is w_g, g_p is exactly 0 where it should be: a norm blows up rounding."""
        g_p, value = loss.gradient(passes, w)
        if self.exact_zero and self.gradient_is_zero(model):
            g_p = torch.mul(g_p, (w != context["w_g"]).any())
        return g_p, value

    def at_w(
        self, w: Tensor, batch: Examples, context: Context, model: ClientModel
    ) -> tuple[BatchProximal, WholePasses, Tensor, Tensor]:
        """Return the proximal loss on a batch, the passes of the step, and g_p and L_p at w."""
        loss, passes = self.proximal.on(batch, context, model), WholePasses(model, batch[0])
        return loss, passes, *self.proximal_gradient(loss, passes, w, context, model)

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        w_g = visit.layout.params(visit.weights)
        return visit.weights, {"w_g": w_g, "n_steps": visit.n_steps, **self.proximal.begin(visit)}

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:  # noqa: ARG002
        return StepState(model.init(w), True, w.new_zeros(2) if self.diagnose else None, model.optimizer)

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        return self.apply_gradient(w, self.direction(w, batch, context, model), context, state, model)

    def apply_gradient(
        self, w: Tensor, found: Direction, context: Context, state: StepState, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        """Return what a step along this direction returns."""
        w, inner = model.apply_gradient(w, found.g, state.inner)
        sums = state.sums
        if sums is not None and found.l_p is not None and found.g_p is not None:
            sums = sums + torch.stack([found.l_p, self.cosine(found.g, found.g_p, context)])
        return w, StepState(inner, False, sums, state.optimizer), found.loss

    def cosine(self, g: Tensor, g_p: Tensor, context: Context) -> Tensor:  # noqa: ARG002 - what FedSOL overrides
        sizes: Tensor = g.norm() * g_p.norm()
        return torch.dot(g, g_p) / sizes.clamp_min(torch.finfo(g.dtype).tiny)

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        out = self.proximal.finish(w, context, state.optimizer, self.beta if self.adds_proximal_loss else 0.0)
        if state.sums is None:
            return out
        proximal, cosine = state.sums / context["n_steps"]
        return out._replace(notes={"proximal": proximal, "cosine_proximal": cosine})


@dataclass(frozen=True)
class PerturbedDescent(ProximalDescent):
    """Base of the strategies that perturb weights."""

    follows_proximal: ClassVar[bool] = True  # whether weights are perturbed along g_p alone

    def check(self, layout: Layout, optimizer: Optimizer) -> None:
        super().check(layout, optimizer)
        self.perturb.layers(layout)
        if self.perturb.region == "head" and self.follows_proximal and not self.proximal.reaches_head:
            raise BadInput(
                "--method.part head: the proximal loss does not depend on the head, so nothing would be perturbed;"
                " use --method.part all"
            )

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        start, context = super().begin(visit)
        return start, {**context, **self.perturb.begin(visit.layout)}
