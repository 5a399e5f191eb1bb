"""A local rule that does what another does and notes where every training started and ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from tarry.core.local_rule import ClientModel, Context, LocalRule, RuleStep, VisitInput, VisitOutput
from tarry.core.method import Method
from tarry.core.task import Examples


@dataclass(frozen=True)
class Spy(LocalRule):
    """LocalResult one by one without lookahead, the last entry is the visit that arrives next."""

    inner: LocalRule
    starts: list[Tensor] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        start, context = self.inner.begin(visit)
        self.starts.append(start.clone())
        return start, context

    @property
    def required_payload(self) -> frozenset[str]:
        return self.inner.required_payload

    @property
    def uploads(self) -> frozenset[str]:
        return self.inner.uploads

    @property
    def passes(self) -> tuple[RuleStep, ...]:
        return self.inner.passes

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:
        return self.inner.init(w, context, model)

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        return self.inner.step(w, batch, context, state, model)

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        self.ends.append(w.clone())
        return self.inner.finish(w, context, state)


def spied(method: Method) -> tuple[Method, Spy]:
    spy = Spy(method.local)
    return replace(method, local=spy), spy
