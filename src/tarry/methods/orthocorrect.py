"""OrthoCorrect: Aggregation on Learnable Manifolds for Asynchronous Federated Optimization, Sec. 3.

    b = Θ^t − Θ^τ                      the drift, uphill sign; Δ = Θ^t − Θ_i
    Δ̂ = Δ − (Δ·b / ‖b‖²) b            if cos(Δ, b) ≤ ϑ: the conflicting part is removed, the orthogonal part kept
    Δ̂ = Δ − α b                       else
    Θ ← Θ − η Δ̂

    orthograd   α = 0, ϑ = 0     surgery on the displacement        orthostrict   ϑ = 1: always remove
    orthopos    α = 1, ϑ = 0     trust the position, but never against the drift
    orthodyn    orthograd → (optional: asgd) → orthopos, by a statistic of closeness to convergence            Eq. 16

Errata. The text multiplies the unnormalized drift by Δ·b/‖b‖; what it describes (gradient surgery) needs Δ·b/‖b‖²,
which is used: after a conflict Δ̂·b = 0. For orthopos the printed test is Δ·b ≤ 0; surgery on Δ − b would test
Δ·b < ‖b‖². The default is the printed rule, the other `conflict="endpoint"`. η is ours: the paper studies the endpoint
Θ − Δ̂ itself. The paper does not say when orthodyn switches; the statistics here are ours (parts.endpoint). With the
default, `agreement`, position is trusted only while the position where a client ended predicts its next displacement
better than its last displacement does. If it never does, orthodyn is orthograd.

Eq. 15 is Δ + λ M (Θ^τ − Θ^t) with any λ ≥ 0 and matrix M. With M = I it is `orthocorrect:theta=-1,alpha=λ`, where only
exact opposition is a conflict; with M = diag(Δ)² it is `dc-asgd:lam=λ`. Another M is a correct part of your own.
"""

from __future__ import annotations

from typing import Annotated

from ..core.method import Method
from ..core.parts import Correct
from ..core.search_space import Range
from ..parts import endpoint
from ..parts.checks import between, check, finite
from ..parts.endpoint import delay_correction, dynamic, orthogonal
from ..parts.step import add
from .registry import methods

__all__ = ["orthocorrect", "orthodyn", "orthograd", "orthopos", "orthostrict"]

PAPER = "Aggregation on Learnable Manifolds for Asynchronous Federated Optimization"
EndpointShare = Annotated[float, "η, the share of the way to the corrected endpoint"]
ConflictTest = Annotated[endpoint.Conflict, "the test: cos(Δ, b) ≤ ϑ as printed, or Δ·b < ‖b‖²"]


def _method(name: str, eta: float, correct: Correct) -> Method:
    return Method(name, staleness="through the drift G = W_now − W_start", correct=correct, step=add(eta))


@methods.register(
    "orthocorrect",
    paper=PAPER,
    use="To study delay corrections: the two limits and everything between are one formula.",
    space={"alpha": Range(0.0, 1.0), "eta": Range(0.1, 1.0)},
)
def orthocorrect(
    *,
    alpha: Annotated[float, "λ when there is no conflict: 0 trusts displacement, 1 position; any number"] = 0.0,
    theta: Annotated[float, "ϑ: the cosine up to which displacement and drift conflict"] = 0.0,
    conflict: ConflictTest = "start",
    eta: EndpointShare = 0.4,
) -> Method:
    """Make a stale displacement orthogonal to the drift of the global when the two conflict."""
    check(between(-1, 1, theta=theta), finite(alpha=alpha))
    return _method("orthocorrect", eta, delay_correction(orthogonal(alpha, theta, conflict)))


@methods.register(
    "orthograd",
    paper=PAPER,
    use="Stale clients early in training: what goes against the drift is taken out of their displacement.",
    space={"eta": Range(0.1, 1.0)},
)
def orthograd(*, eta: EndpointShare = 0.4) -> Method:
    """OrthoCorrect that trusts displacement: α = 0, ϑ = 0."""
    return _method("orthograd", eta, delay_correction(orthogonal(0.0, 0.0)))


@methods.register(
    "orthopos",
    paper=PAPER,
    use="Stale clients close to convergence, where the position a client reached means more than its displacement.",
    space={"eta": Range(0.1, 1.0)},
)
def orthopos(*, conflict: ConflictTest = "start", eta: EndpointShare = 0.4) -> Method:
    """OrthoCorrect that trusts position: α = 1, ϑ = 0."""
    return _method("orthopos", eta, delay_correction(orthogonal(1.0, 0.0, conflict)))


@methods.register(
    "orthostrict",
    paper=PAPER,
    use="As an ablation: nothing along the drift is ever accepted.",
    space={"eta": Range(0.1, 1.0)},
)
def orthostrict(*, eta: EndpointShare = 0.4) -> Method:
    """OrthoCorrect that always projects: ϑ = 1."""
    return _method("orthostrict", eta, delay_correction(orthogonal(0.0, 1.0)))


@methods.register(
    "orthodyn",
    paper=PAPER,
    use="Stale clients over a whole run, when one cannot say beforehand which of orthograd and orthopos is right.",
    space={"eta": Range(0.1, 1.0)},
)
def orthodyn(
    *,
    statistic: Annotated[str, "closeness to convergence: agreement, ratio, progress, or file.py:factory"] = "agreement",
    switch: Annotated[float | None, "the value above which position is trusted; the statistic's own"] = None,
    middle: Annotated[float, "trust displacement without surgery (asgd) this far below the switch"] = 0.0,
    smooth: Annotated[float, "how slowly the statistic's running mean forgets"] = 0.95,
    eta: EndpointShare = 0.4,
) -> Method:
    """OrthoCorrect that trusts displacement first and position once a statistic says so.

    agreement: which of the two guesses the clients' next visits bear out; above 0.5 position did. ratio: how far
    displacements have shrunk from the most they were; 0.8. progress: the share of the budget used; 0.5.
    """
    return _method("orthodyn", eta, dynamic(statistic, switch=switch, middle=middle, smooth=smooth))
