"""Delay correction: what a displacement trained from an older global means for the present one.

    Δ̂ = Δ + λ M (Θ^τ − Θ^t)       AsyncManifold Sec. 3, Δ = Θ^t − Θ_i uphill

Here, downhill: δ = −Δ is the client's displacement, G = Θ^τ − Θ^t the drift of the global since the hand-out, and
δ̂ = δ − λ M G. The corrected update stands at the present global, so any aggregate and step can follow: W + δ̂ is the
endpoint Θ̂. A control point that came along is turned with it, from δ onto δ̂ (Eq. 17).

    shifted(λ)             δ − λ G                    λ = 0 trusts displacement (ASGD), λ = 1 position (FedAsync)
    orthogonal(α, ϑ)       OrthoCorrect               the conflicting part removed, else δ − α G
    dynamic(statistic)     OrthoDyn, Eq. 16           orthograd → (asgd) → orthopos as a statistic rises

A statistic of closeness to convergence is a record (init, measure, switch): measure(late, state) → (value in [0, 1],
state), and the value above which position is trusted unless one is asked for. From outside: `file.py:factory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.client_table import Table
from ..core.errors import BadInput
from ..core.method import Now, Part
from ..core.registry import Registry
from ..core.tickets import Update
from ..vector.blocks import blocks, blocks_reversed
from ..vector.fused import as_scalar, combined, kernels_for, partition
from ..vector.pool import empty_pooled
from .manifold import CONTROL, inner, rotated, turning

__all__ = [
    "Conflict",
    "Late",
    "Rule",
    "Statistic",
    "corrected",
    "dynamic",
    "orthogonal",
    "positioned",
    "shifted",
    "statistics",
]

Conflict = Literal["start", "endpoint"]


class Late(NamedTuple):
    """A displacement that comes late: over the trained weights, with the update and the moment it is from."""

    delta: Tensor  # δ
    drift: Tensor  # G
    update: Update
    now: Now
    products: Sequence[Tensor] | None = None  # δ·G, G·G and δ·δ, where they are known already


#: late, state → δ̂, state; in the place of a δ̂ that is δ − λ G, the number λ will do, as one or as a tensor
Rule = Callable[[Late, Any], tuple[Tensor | float, Any]]


def _no_state(_: Tensor) -> None:
    return None


def corrected(rule: Rule, init: Callable[[Tensor], Any] = _no_state) -> Part[Update, Update]:
    """A correct part from a rule. Running statistics have no direction: they stay the client's."""

    def apply(update: Update, state: Any, now: Now) -> tuple[Update, Any]:
        params, moved = now.layout.params, now.moved(update)
        w, sent = params(now.weights), params(update.ticket.sent)
        late, bend = _late(params(moved), w, sent, update, now)
        found, state = rule(late, state)
        extras, control = update.extras, update.extras.get(CONTROL)
        if isinstance(found, Tensor) and found.ndim:
            new = found
            turned = None if control is None else rotated(control, late.delta, new)
        else:
            new, turned = _straight(late, found, control, bend)
        if turned is not None:
            extras = {**extras, CONTROL: turned}
        if now.layout.stats:
            new = torch.cat([new, moved[now.layout.n_params :]])
        here = update.ticket._replace(sent=now.weights, anchor=now.weights, version=now.version)
        return update.but(ticket=here, delta=new, extras=extras), state

    return Part(apply, init)


def _late(delta: Tensor, w: Tensor, sent: Tensor, update: Update, now: Now) -> tuple[Late, tuple[float, float] | None]:
    """And a control point's products with δ and G, where there is one and they cost nothing."""
    drift, control = empty_pooled(w), update.extras.get(CONTROL)
    if (kernels := kernels_for(w, sent, delta)) is None:
        return Late(delta, torch.sub(w, sent, out=drift), update, now), None
    whole, bend = partition((0, len(w))), None
    if control is not None and kernels_for(w, control) is not None:
        *sums, x, y = whole.sums(kernels.drifted_beside, 5, w, sent, delta, control, drift)
        bend = float(x[0]), float(y[0])
    else:
        sums = whole.sums(kernels.drifted, 3, w, sent, delta, drift)
    return Late(delta, drift, update, now, torch.from_numpy(np.concatenate(sums)).unbind()), bend


def _straight(
    late: Late, lam: Tensor | float, control: Tensor | None, bend: tuple[float, float] | None
) -> tuple[Tensor, Tensor | None]:
    """δ − λ G, and the control point turned with it."""
    delta, drift = late.delta, late.drift
    if isinstance(lam, float) and lam == 0:
        return delta, control
    new = empty_pooled(delta)
    if bend is not None and late.products is not None and control is not None:
        share, (along, size, own) = float(lam), (float(p) for p in late.products)
        turn = turning(along, size, own, bend, share) if share else (0.0, 0.0)
        if turn is not None:
            kernels, turned = kernels_for(delta), empty_pooled(delta)
            assert kernels is not None
            numbers = [as_scalar(x, delta) for x in (share, *turn)]
            partition((0, len(delta))).run(kernels.corrected_beside, delta, drift, control, *numbers, new, turned)
            return new, turned
    if late.products is not None:
        combined(delta, drift, -float(lam), out=new)
    elif isinstance(lam, Tensor):
        for d, g, out in blocks_reversed(delta, drift, new):
            torch.addcmul(d, g, lam, value=-1, out=out)
    else:
        torch.sub(delta, drift, alpha=lam, out=new)
    return new, None if control is None else rotated(control, delta, new)


def positioned() -> Part[Update, Update]:
    """λ = 1: what the client learnt is where it ended, whatever the global did meanwhile (FedAsync's trust)."""

    def apply(update: Update, state: None, now: Now) -> tuple[Update, None]:
        here = update.ticket._replace(sent=now.weights, anchor=now.weights, version=now.version)
        delta, extras = update.local - now.weights, update.extras
        if CONTROL in extras:
            params = now.layout.params
            extras = {**extras, CONTROL: rotated(extras[CONTROL], params(update.delta), params(delta))}
        moved = update.but(ticket=here, delta=delta, extras=extras)
        moved.__dict__["local"] = update.local  # to the bit, not sent + delta
        return moved, state

    return Part(apply)


def shifted(lam: float) -> Rule:
    """δ − λ G."""

    def rule(_: Late, state: Any) -> tuple[float, Any]:
        return lam, state

    return rule


def orthogonal(alpha: float, theta: float, conflict: Conflict = "start") -> Rule:
    """OrthoCorrect in downhill signs: δ = −Δ and G = −b, so δ·G = Δ·b. The endpoint's test knows no ϑ."""
    theta = 0.0 if conflict == "endpoint" else theta

    def rule(late: Late, state: Any) -> tuple[Tensor, Any]:
        along, size, own = late.products or _products(late.delta, late.drift, whole=theta != 0)
        limit = size if conflict == "endpoint" else theta * torch.sqrt(own * size)
        conflicts = along < limit if conflict == "endpoint" else along <= limit
        if theta >= 1 and conflict == "start":  # always: rounding must not let parallel vectors by
            conflicts = torch.ones_like(conflicts)
        projection = along / size.clamp_min(torch.finfo(size.dtype).tiny)
        return torch.where(conflicts, projection, alpha), state

    return rule


def _products(delta: Tensor, drift: Tensor, *, whole: bool) -> Sequence[Tensor]:
    """δ·G, G·G, and δ·δ where it is asked for, else 0."""
    none = drift.new_zeros(())
    sums = [
        torch.stack([torch.dot(d, g), torch.dot(g, g), torch.dot(d, d) if whole else none])
        for d, g in blocks(delta, drift)
    ]
    return (sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)).unbind()


class Statistic(NamedTuple):
    """How close to convergence a run is: a value from 0 to 1, and where it switches unless told otherwise."""

    init: Callable[[], Any]
    measure: Callable[[Late, Any], tuple[float, Any]]
    switch: float


statistics: Registry[Statistic] = Registry("statistic", Statistic)

Smooth = Annotated[float, "how slowly the running mean forgets"]


@statistics.register("progress")
def progress() -> Statistic:
    """The share of the budget that is used; half of it, unless told otherwise."""
    return Statistic(lambda: None, lambda late, state: (late.now.progress, state), 0.5)


@statistics.register("ratio")
def ratio(*, smooth: Smooth = 0.95) -> Statistic:
    """How far the clients' displacements have shrunk: 1 − the running mean of ‖δ‖ over the most it ever was.

    The mean begins with the first ‖δ‖: mean ← smooth · mean + (1 − smooth) ‖δ‖; the most is of that mean.
    """

    def measure(late: Late, state: dict[str, float] | None) -> tuple[float, dict[str, float]]:
        size = torch.linalg.vector_norm(late.delta).item()
        mean = size if state is None else smooth * state["mean"] + (1 - smooth) * size
        most = mean if state is None else max(state["most"], mean)
        return (1 - mean / most if most > 0 else 0.0), {"mean": mean, "most": most}

    return Statistic(lambda: None, measure, 0.8)


_SAMPLE = 4096  # coordinates of a client that `agreement` remembers


@statistics.register("agreement")
def agreement(*, smooth: Smooth = 0.95) -> Statistic:
    """Which guess clients then bear out: where a client ended last time, or the way it went.

    When a client comes again with δ, from Θ, its last visit had two guesses to offer: position says Θ_i,last − Θ,
    displacement δ_last. The value is (1 + e)/2, e the running mean of cos(δ, Θ_i,last − Θ) − cos(δ, δ_last): above a
    half position has been the better guess. It is 0 until there are two comparisons a client. Cosines are taken on an
    even sample of the coordinates, so a client costs the server little.
    """

    def measure(late: Late, state: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        me, n = late.update.ticket.client, len(late.delta)
        stride = ceil(n / _SAMPLE)
        delta, sent = late.delta[::stride].clone(), late.update.ticket.sent[:n:stride]
        clients, e, count = state["clients"], state["e"], state["count"]
        if (row := clients.get(me)) is not None:
            last, ended = row
            better = _cosine(delta, ended - sent) - _cosine(delta, last)
            e, count = (smooth * e + (1 - smooth) * better if count else better), count + 1
        value = min(max((1 + e) / 2, 0.0), 1.0) if count >= 2 * late.now.n_clients else 0.0
        clients.put(me, torch.stack([delta, sent + delta]))
        return value, {"clients": clients, "e": e, "count": count}

    return Statistic(lambda: {"clients": Table(), "e": 0.0, "count": 0}, measure, 0.5)


def _cosine(a: Tensor, b: Tensor) -> float:
    """0 where one of them is 0."""
    size = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    return float(inner(a, b) / size.clamp_min(torch.finfo(size.dtype).tiny))


def dynamic(
    statistic: str, *, switch: float | None = None, middle: float = 0.0, smooth: float = 0.95
) -> Part[Update, Update]:
    """OrthoDyn: orthograd, then asgd while the statistic is within `middle` below the switch, orthopos above it.

    The phase follows the statistic of the moment: if it falls again, displacement is trusted again.
    """
    chosen = _statistic(statistic, smooth)
    limit = chosen.switch if switch is None else switch
    _check(limit, middle, smooth)
    phases = (orthogonal(0.0, 0.0), shifted(0.0), orthogonal(1.0, 0.0))

    def rule(late: Late, state: Any) -> tuple[Tensor | float, Any]:
        value, state = chosen.measure(late, state)
        phase = 2 if value > limit else 1 if value > limit - middle else 0
        if late.now.notes is not None:
            late.now.notes.update(phase=phase, statistic=value)
        return phases[phase](late, None)[0], state

    return corrected(rule, lambda _: chosen.init())


def _statistic(name: str, smooth: float) -> Statistic:
    try:
        knows = {p.name for p in statistics.entry(name).params}
        return statistics.build(name, {"smooth": smooth} if "smooth" in knows else None)
    except BadInput as e:
        raise BadInput([p.replace("--statistic", "--method.statistic", 1) for p in e.problems]) from e


def _check(switch: float, middle: float, smooth: float) -> None:
    problems = [f"--method.switch {switch}: must be between 0 and 1"] if not 0 <= switch <= 1 else []
    problems += [f"--method.middle {middle}: must be between 0 and 1"] if not 0 <= middle <= 1 else []
    problems += [f"--method.smooth {smooth}: must be in [0, 1)"] if not 0 <= smooth < 1 else []
    if problems:
        raise BadInput(problems)
