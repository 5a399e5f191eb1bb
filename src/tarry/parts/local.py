"""Client rules that several methods share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.local_rule import Brief, Context, LocalRule

__all__ = ["ProximalRule"]


@dataclass(frozen=True)
class ProximalRule(LocalRule):
    """FedProx's client: descend the local loss + (μ/2) ‖w − w_start‖²."""

    mu: float

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise BadInput(f"--method.mu {self.mu}: must be 0 or more")

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        return brief.weights, {"start": brief.layout.params(brief.weights)}

    def bend(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        return torch.add(g, w - context["start"], alpha=self.mu)
