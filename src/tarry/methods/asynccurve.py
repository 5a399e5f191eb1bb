"""AsyncCurve: Aggregation on Learnable Manifolds for Asynchronous Federated Optimization, Sec. 5.2.

    client   trains an endpoint Θ_i and the control point φ of a curve to it                Algorithm 2: parts.curve
    server   on arrival                                                                     Algorithm 1
             p_i     ← the share of updates that were client i's
             Θ̂       = the corrected endpoint, by orthodyn                                  Sec. 3: parts.endpoint
             φ̂       = (Θ^τ + Θ̂)/2 + R(φ − (Θ^t + Θ_i)/2),  R: Θ_i − Θ^t onto Θ̂ − Θ^τ       Eq. 17: parts.endpoint
             α       = η(τ) / (K p_i), at most 1                                            the dominance penalty
             Θ^(τ+1) = (1−α)² Θ^τ + 2α(1−α) φ̂ + α² Θ̂                                        Eq. 31: parts.manifold
             Θ^SWA   ← mean of it and every Θ^(τ+1), τ ≡ 0 mod c, in the last part of the budget
             Θ^(τ+1) ← Θ^SWA if τ ≡ 0 mod C                                                 periodic SWA, Sec. 5.1
             Θ^(τ+1) is sent with Θ^τ − Θ^(τ+1), Adam's first moments
    answer   Θ^SWA; before there is one, Θ

    η(τ) = η (1 − (1 − low) u),  u = ((τ − 1) mod c + 1)/c        Izmailov et al. 2018: lowest where averages are taken

Errata. The curve is printed with α(1−α) φ̂, whose coefficients do not sum to 1; the default is the true Bézier curve,
the other `curve="printed"`. Algorithm 1 computes φ̂ before the Θ̂ it needs; Θ̂ comes first here. Eq. 32 weighs by w_i,
Algorithm 1 by 1/(K p_i); Algorithm 1 is followed. T is the run's budget: without one there is no Θ^SWA.

The clients' optimiser and learning rates are the method's, not the run's. The paper gives η₁ = 1e-3 and η₂ = η₁/10 (its
Fig. 3) and no other number; ρ is from Kwon et al. 2021, the rest from trials on `digits`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.client_table import Marks
from ..core.errors import BadInput
from ..core.method import Geodesic, Method, Now, Part
from ..core.tickets import Offer, Update
from ..parts.curve import SHIFT, CurveLearning, Proximal, Shape, Solver
from ..parts.endpoint import corrected, dynamic, orthogonal, shifted
from ..parts.manifold import bezier, line, onward, printed
from ..vector.pool import empty_pooled
from .registry import methods

__all__ = ["asynccurve"]

Correction = Literal["orthodyn", "orthograd", "orthopos", "orthostrict", "asgd", "fedasync"]
CURVES: dict[str, Geodesic] = {"bezier": bezier, "printed": printed, "line": line}


def delay_correction(name: Correction, statistic: str, switch: float | None) -> Part[Update, Update]:
    """The delay correction of that name."""
    if name == "orthodyn":
        return dynamic(statistic, switch=switch)
    rules = {
        "orthograd": orthogonal(0.0, 0.0),
        "orthopos": orthogonal(1.0, 0.0),
        "orthostrict": orthogonal(0.0, 1.0),
        "asgd": shifted(0.0),
        "fedasync": shifted(1.0),
    }
    return corrected(rules[name])


def rate(eta: float, low: float, cycle: int, tau: int) -> float:
    """η(τ)."""
    return eta * (1 - (1 - low) * ((tau - 1) % cycle + 1) / cycle)


def curve_step(
    eta: float, low: float, cycle: int, *, penalty: bool, swa: float, periodic: int, moments: bool, along: Geodesic
) -> Part[Update, Tensor]:
    """Algorithm 1 from α on. State: who came how often, the last step, the average and how many it is of."""
    _check(eta, low, cycle, swa, periodic)

    def apply(update: Update, state: dict[str, Any], now: Now) -> tuple[Tensor, dict[str, Any]]:
        me, counts, total = update.ticket.client, state["counts"], state["total"]
        t = rate(eta, low, cycle, now.version) * update.weight
        if me >= 0:  # else it stands for several: nobody dominates
            counts[me], total = counts.get(me, 0) + 1, total + 1
            t = t * total / (now.n_clients * counts[me]) if penalty else t
        here = now.layout.params(now.weights)
        shift = empty_pooled(here) if moments else None
        new = onward(along, now, min(t, 1.0), update, left=shift)
        mean, models = state["swa"], state["models"]
        if swa < 1 and now.progress >= swa and now.version % cycle == 0:
            mean, models = (new if mean is None else torch.lerp(mean, new, 1 / (models + 1))), models + 1
        if periodic and mean is not None and now.version % periodic == 0:
            new = mean
            shift = here - now.layout.params(new) if moments else None
        return new, {"counts": counts, "total": total, "shift": shift, "swa": mean, "models": models}

    def init(_: Tensor) -> dict[str, Any]:
        return {"counts": Marks(), "total": 0, "shift": None, "swa": None, "models": 0}

    def offer(_: int, state: dict[str, Any], __: Now) -> Offer | None:
        return None if state["shift"] is None else Offer({SHIFT: state["shift"]})

    def elsewhere(geodesic: Geodesic) -> Part[Update, Tensor]:
        rest: dict[str, Any] = {"penalty": penalty, "swa": swa, "periodic": periodic, "moments": moments}
        return curve_step(eta, low, cycle, along=geodesic, **rest)

    sends = frozenset({SHIFT}) if moments else frozenset[str]()
    return Part(apply, init, offer if moments else None, along=elsewhere, sends=sends)


def _check(eta: float, low: float, cycle: int, swa: float, periodic: int) -> None:
    problems = [f"--method.eta {eta}: must be above 0"] if not eta > 0 else []
    problems += [f"--method.low {low}: must be between 0 and 1"] if not 0 <= low <= 1 else []
    problems += [f"--method.cycle {cycle}: must be 1 or more"] if cycle < 1 else []
    problems += [f"--method.swa {swa}: must be 0 or more"] if not swa >= 0 else []
    problems += [f"--method.periodic {periodic}: must be 0 (never) or more"] if periodic < 0 else []
    if problems:
        raise BadInput(problems)


def averaged(weights: Tensor, state: Any) -> Tensor:
    """Θ^SWA, or Θ while there is none."""
    mean: Tensor | None = state["step"]["swa"]
    return weights if mean is None else mean


@methods.register(
    "asynccurve",
    paper="Aggregation on Learnable Manifolds for Asynchronous Federated Optimization",
    use="A few clients in a long run, with twice the traffic and local work to spare; --diagnose tells what it gains.",
)
def asynccurve(
    *,
    eta: Annotated[float, "η, the most of the way a step goes, before the dominance penalty"] = 0.4,
    low: Annotated[float, "what of η is left at the end of a cycle; 1 keeps it constant"] = 0.5,
    cycle: Annotated[int, "c, the server steps of a cycle of η, and between averages"] = 5,
    penalty: Annotated[bool, "divide by K p_i: whoever comes often counts for less"] = True,
    swa: Annotated[float, "the share of the budget after which weights are averaged; 1 never"] = 0.75,
    periodic: Annotated[int, "C, the server steps after which the average becomes the global; 0 never"] = 0,
    curve: Annotated[
        Shape, "the way the global travels: Bézier, as printed, or straight (no control points)"
    ] = "bezier",
    correction: Annotated[Correction, "what is done about delay"] = "orthodyn",
    statistic: Annotated[str, "orthodyn's: agreement, ratio, progress, or file.py:factory"] = "agreement",
    switch: Annotated[float | None, "orthodyn: the value above which position is trusted; the statistic's own"] = None,
    optimiser: Annotated[Solver, "the clients'"] = "adam",
    lr: Annotated[float, "η₁, of the endpoint"] = 1e-3,
    control_lr: Annotated[float | None, "η₂, of the control point; lr/10 when left out"] = None,
    moments: Annotated[bool, "begin Adam with the global's last step"] = True,
    rho: Annotated[float, "ρ, how far asam looks"] = 0.5,
    proximal: Annotated[Proximal, "what holds clients near the weights they received"] = "lorentz",
    mu: Annotated[float, "μ, how strongly"] = 0.1,
    sigma: Annotated[float, "σ of lorentz: smaller holds more, and more so further away"] = 1.0,
    gamma: Annotated[float, "γ, how far control points are kept orthogonal to the line"] = 1.0,
) -> Method:
    """Clients learn a curve to where they end; the server walks along it.

    Clients descend by the optimiser and the rates of the method, not by the run's --optimiser, --lr, --momentum,
    --weight-decay and --lr-decay; asam is a step of Adam at a point further up.
    """
    moments = moments and optimiser != "sgd"
    local = CurveLearning(
        lr=lr,
        control_lr=lr / 10 if control_lr is None else control_lr,
        solver=optimiser,
        rho=rho,
        proximal=proximal,
        mu=mu,
        sigma=sigma,
        gamma=gamma,
        shape=curve,
    )
    return Method(
        "asynccurve",
        staleness=f"through the drift G = W_now − W_start, by {correction}",
        local=local,
        correct=delay_correction(correction, statistic, switch),
        step=curve_step(
            eta, low, cycle, penalty=penalty, swa=swa, periodic=periodic, moments=moments, along=CURVES[curve]
        ),
        answer=averaged,
    )
