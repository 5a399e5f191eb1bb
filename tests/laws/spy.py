"""A local rule that does what another does and notes where every training started and ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from tarry.core.local_rule import Brief, Context, Functions, LocalRule, Outcome, Step
from tarry.core.method import Method
from tarry.core.task import Examples


@dataclass(frozen=True)
class Spy(LocalRule):
    """LocalResult one by one without lookahead, the last entry is the visit that arrives next."""

    inner: LocalRule
    starts: list[Tensor] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        start, context = self.inner.begin(brief)
        self.starts.append(start.clone())
        return start, context

    @property
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    @property
    def gives(self) -> frozenset[str]:
        return self.inner.gives

    @property
    def laps(self) -> tuple[Step, ...]:
        return self.inner.laps

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:
        return self.inner.init(w, context, f)

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        return self.inner.step(w, batch, context, state, f)

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:
        self.ends.append(w.clone())
        return self.inner.finish(w, context, state)


def spied(method: Method) -> tuple[Method, Spy]:
    spy = Spy(method.local)
    return replace(method, local=spy), spy
