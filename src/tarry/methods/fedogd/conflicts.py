"""Conflicts of a client's gradients with the base, counted around its rule for --diagnose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ...core.local_rule import ClientModel, Context, LocalRule, VisitInput, VisitOutput
from ...core.task import Examples

__all__ = ["CountConflicts", "GradientRecorder"]


@dataclass(frozen=True)
class CountConflicts(LocalRule):
    """The rule inside; with --diagnose its steps with ⟨g, b⟩ < 0 are counted too, b being `context["b"]`."""

    rule: LocalRule

    @property
    def required_payload(self) -> frozenset[str]:
        return self.rule.required_payload

    @property
    def uploads(self) -> frozenset[str]:
        return self.rule.uploads

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        start, context = self.rule.begin(visit)
        return start, {**context, "n_steps": visit.n_steps}

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:
        return self.rule.init(w, context, model), torch.zeros_like(w[0])

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        own, conflicts = state
        if not self.diagnose:
            w, own, loss = self.rule.step(w, batch, context, own, model)
            return w, (own, conflicts), loss
        recorder = GradientRecorder(model)
        w, own, loss = self.rule.step(w, batch, context, own, cast(ClientModel, recorder))
        return w, (own, conflicts + (torch.dot(recorder.g, context["b"]) < 0)), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        own, conflicts = state
        out = self.rule.finish(w, context, own)
        return out._replace(notes={"conflict": conflicts / context["n_steps"]}) if self.diagnose else out


class GradientRecorder:
    """The functions of a client, and the gradient that they returned last."""

    def __init__(self, model: ClientModel):
        self._f = model

    def grad(self, *args: Any, **more: Any) -> tuple[Tensor, Tensor]:
        self.g, loss = self._f.grad(*args, **more)
        return self.g, loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._f, name)
