"""What a client does: a LocalRule, called by the one training loop of the project (core.client).

    begin(brief)                        → start, context   where training starts, and what every step may read
    step(w, batch, context, state, f)   → w, state, loss   one mini-batch; w are the trained weights, flat
    finish(w, context)                  → extras, memory   what travels back beside the delta; what the client keeps

f gives pure functions of the flat weights, so a rule is written once and runs one by one or stacked:

    f.grad(w, batch) → gradient, loss      f.descend(w, g, state) → w, state      f.layout

A step has no Python branch on a tensor's value, never writes to its inputs and draws no hidden randomness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .layout import Layout
from .task import Examples
from .ticket import NOTHING

__all__ = ["Brief", "Context", "Functions", "LocalRule"]

Context = Mapping[str, Tensor]


class Brief(NamedTuple):
    """What a client begins a visit with: what was sent, and what it kept from its last one."""

    weights: Tensor
    payload: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]
    layout: Layout


class Functions(Protocol):
    """What a rule may call. `w` is the trained part of the vector (layout.params)."""

    layout: Layout

    def grad(self, w: Tensor, batch: Examples, /) -> tuple[Tensor, Tensor]:
        """Gradient of the task's loss at w on a batch, and the loss; a training pass (dropout on, statistics move)."""

    def descend(self, w: Tensor, g: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """One step of the client's optimiser along g."""


@dataclass(frozen=True)
class LocalRule:
    """Plain training: descend the task's gradient from the weights received. Other rules override what they change."""

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        return brief.weights, NOTHING

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        g, loss = f.grad(w, batch)
        w, state = f.descend(w, self.bend(g, w, context), state)
        return w, state, loss

    def bend(self, g: Tensor, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002 - what rules override
        """The direction to descend, from the gradient."""
        return g

    def finish(self, w: Tensor, context: Context) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:  # noqa: ARG002
        return NOTHING, NOTHING
