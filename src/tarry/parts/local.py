"""Client rules that several methods share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.local_rule import Context, LocalRule, VisitInput
from .checks import at_least, check

__all__ = ["ProximalRule"]


@dataclass(frozen=True)
class ProximalRule(LocalRule):
    """FedProx's client: descend the local loss + (μ/2) ‖w − w_start‖²."""

    mu: float

    def __post_init__(self) -> None:
        check(at_least(0, mu=self.mu))

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        return visit.weights, {"start": visit.layout.params(visit.weights)}

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        return torch.add(g, w - context["start"], alpha=self.mu)
