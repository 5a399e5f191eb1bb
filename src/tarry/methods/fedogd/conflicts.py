"""Conflicts of a client's gradients with the base, counted around its rule for --diagnose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ...core.local_rule import Brief, Context, Functions, LocalRule, Outcome
from ...core.task import Examples

__all__ = ["CountConflicts"]


@dataclass(frozen=True)
class CountConflicts(LocalRule):
    """The rule inside; with --diagnose its steps with ⟨g, b⟩ < 0 are counted too, b being `context["b"]`."""

    rule: LocalRule

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs

    @property
    def gives(self) -> frozenset[str]:
        return self.rule.gives

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        start, context = self.rule.begin(brief)
        return start, {**context, "n_steps": brief.n_steps}

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:
        return self.rule.init(w, context, f), torch.zeros_like(w[0])

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        own, conflicts = state
        if not self.watch:
            w, own, loss = self.rule.step(w, batch, context, own, f)
            return w, (own, conflicts), loss
        recorder = _Recorder(f)
        w, own, loss = self.rule.step(w, batch, context, own, cast(Functions, recorder))
        return w, (own, conflicts + (torch.dot(recorder.g, context["b"]) < 0)), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:
        own, conflicts = state
        out = self.rule.finish(w, context, own)
        return out._replace(notes={"conflict": conflicts / context["n_steps"]}) if self.watch else out


class _Recorder:
    """The functions of a client, and the gradient that they returned last."""

    def __init__(self, f: Functions):
        self._f = f

    def grad(self, *args: Any, **more: Any) -> tuple[Tensor, Tensor]:
        self.g, loss = self._f.grad(*args, **more)
        return self.g, loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._f, name)
