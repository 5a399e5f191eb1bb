"""OrthoCorrect: Aggregation on Learnable Manifolds for Asynchronous Federated Optimization, Sec. 3.

    b = Θ^t − Θ^τ                      the drift, uphill sign; Δ = Θ^t − Θ_i
    Δ̂ = Δ − (Δ·b / ‖b‖²) b            if cos(Δ, b) ≤ ϑ: the conflicting part is removed, the orthogonal part kept
    Δ̂ = Δ − α b                       else
    Θ ← Θ − η Δ̂

    orthograd   α = 0, ϑ = 0     surgery on the displacement        orthostrict   ϑ = 1: always remove
    orthopos    α = 1, ϑ = 0     trust the position, but never against the drift

Errata. The text multiplies the unnormalised drift by Δ·b/‖b‖; what it describes (gradient surgery) needs Δ·b/‖b‖²,
which is used: after a conflict Δ̂·b = 0. For orthopos the printed test is Δ·b ≤ 0; surgery on Δ − b would test
Δ·b < ‖b‖². The default is the printed rule, the other `conflict="endpoint"`. η is ours: the paper studies the endpoint
Θ − Δ̂ itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Method
from ..parts.endpoint import Rule, corrected
from ..parts.step import add
from .registry import methods

__all__ = ["orthocorrect", "orthograd", "orthopos", "orthostrict"]

PAPER = "Aggregation on Learnable Manifolds for Asynchronous Federated Optimization"
Eta = Annotated[float, "η, the share of the way to the corrected endpoint"]
Conflict = Annotated[Literal["start", "endpoint"], "the test: cos(Δ, b) ≤ ϑ as printed, or Δ·b < ‖b‖²"]


def orthogonal(alpha: float, theta: float, conflict: str) -> Rule:
    """The rule in downhill signs: δ = −Δ and G = −b, so δ·G = Δ·b."""

    def rule(delta: Tensor, drift: Tensor, state: Any) -> tuple[Tensor, Any]:
        along, size = torch.dot(delta, drift), torch.dot(drift, drift)
        limit = size if conflict == "endpoint" else theta * torch.sqrt(torch.dot(delta, delta) * size)
        conflicts = along < limit if conflict == "endpoint" else along <= limit
        projection = along / size.clamp_min(torch.finfo(size.dtype).tiny)
        return delta - torch.where(conflicts, projection, torch.full_like(projection, alpha)) * drift, state

    return rule


def _method(name: str, eta: float, alpha: float, theta: float, conflict: str) -> Method:
    correct = corrected(orthogonal(alpha, theta, conflict))
    return Method(name, staleness="through the drift G = W_now − W_start", correct=correct, step=add(eta))


@methods.register("orthocorrect", paper=PAPER)
def orthocorrect(
    *,
    alpha: Annotated[float, "λ when there is no conflict: 0 trusts displacement, 1 position"] = 0.0,
    theta: Annotated[float, "ϑ: the cosine up to which displacement and drift conflict"] = 0.0,
    conflict: Conflict = "start",
    eta: Eta = 0.4,
) -> Method:
    """Make a stale displacement orthogonal to the drift of the global when the two conflict."""
    problems = [f"--method.theta {theta}: must be between -1 and 1"] if not -1 <= theta <= 1 else []
    problems += [f"--method.alpha {alpha}: must be between 0 and 1"] if not 0 <= alpha <= 1 else []
    if problems:
        raise BadInput(problems)
    return _method("orthocorrect", eta, alpha, theta, conflict)


@methods.register("orthograd", paper=PAPER)
def orthograd(*, eta: Eta = 0.4) -> Method:
    """OrthoCorrect that trusts displacement: α = 0, ϑ = 0."""
    return _method("orthograd", eta, 0.0, 0.0, "start")


@methods.register("orthopos", paper=PAPER)
def orthopos(*, conflict: Conflict = "start", eta: Eta = 0.4) -> Method:
    """OrthoCorrect that trusts position: α = 1, ϑ = 0."""
    return _method("orthopos", eta, 1.0, 0.0, conflict)


@methods.register("orthostrict", paper=PAPER)
def orthostrict(*, eta: Eta = 0.4) -> Method:
    """OrthoCorrect that always projects: ϑ = 1."""
    return _method("orthostrict", eta, 0.0, 1.0, "start")
