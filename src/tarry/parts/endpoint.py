"""Delay correction: correct parts for a displacement that was trained from older global weights.

    Δ̂ = Δ + λ M (Θ^τ − Θ^t)       AsyncManifold Sec. 3, Δ = Θ^t − Θ_i uphill

Here in downhill signs: δ = −Δ is the client's displacement, G = Θ^τ − Θ^t the drift of the global since the hand-out,
and δ̂ = δ − λ M G. The corrected update starts at the present global weights, so any aggregate and step can follow:
W + δ̂ is the endpoint Θ̂. A control point is rotated with it, from δ onto δ̂ (Eq. 17).

    shifted(λ)             δ − λ G                    λ = 0 trusts displacement (ASGD), λ = 1 position (FedAsync)
    orthogonal(α, ϑ)       OrthoCorrect               the conflicting part removed, else δ − α G
    dynamic(statistic)     OrthoDyn, Eq. 16           orthograd → (asgd) → orthopos as a statistic rises

A statistic of closeness to convergence is a record (init, measure, switch): measure(update, state) → (value in [0, 1],
state), and the value above which position is trusted by default. A user's statistic is named `file.py:factory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.client_table import ClientTable
from ..core.errors import BadInput
from ..core.method import ServerView
from ..core.parts import Correct
from ..core.registry import Registry
from ..core.state_tree import StateRecord
from ..core.tickets import CONTROL, Update
from ..vector.blocks import blocks, blocks_reversed
from ..vector.fused import as_scalar, combine, kernels_for, partition
from ..vector.pool import empty_pooled
from .checks import between, check, decay
from .manifold import inner, rotate, rotation_coefficients

__all__ = [
    "Conflict",
    "Rule",
    "StaleUpdate",
    "Statistic",
    "delay_correction",
    "dynamic",
    "orthogonal",
    "subtract_drift",
    "statistics",
    "trust_position",
]

Conflict = Literal["start", "endpoint"]


class StaleUpdate(NamedTuple):
    """A stale displacement over the trained weights, with the drift, its update and the server's view."""

    delta: Tensor  # δ
    drift: Tensor  # G
    update: Update
    view: ServerView
    products: Sequence[Tensor] | None = None  # δ·G, G·G and δ·δ, if they are known already


#: stale update, state → δ̂, state; a rule may return the number λ (or a tensor of it) for δ̂ = δ − λ G
Rule = Callable[[StaleUpdate, Any], tuple[Tensor | float, Any]]


def _no_state(_: Tensor) -> None:
    return None


def delay_correction(rule: Rule, init: Callable[[Tensor], Any] = _no_state) -> Correct:
    """Return a correct part from a rule. Running statistics have no direction: they stay the client's."""

    def apply(update: Update, state: Any, view: ServerView) -> tuple[Update, Any]:
        params, moved = view.layout.params, view.displacement(update)
        w, sent = params(view.weights), params(update.ticket.sent)
        late, control_products = _stale_update(params(moved), w, sent, update, view)
        found, state = rule(late, state)
        extras, control = update.extras, update.extras.get(CONTROL)
        if isinstance(found, Tensor) and found.ndim:
            new = found
            turned = None if control is None else rotate(control, late.delta, new)
        else:
            new, turned = _subtract_drift(late, found, control, control_products)
        if turned is not None:
            extras = {**extras, CONTROL: turned}
        if view.layout.stats:
            new = torch.cat([new, moved[view.layout.n_params :]])
        here = update.ticket._replace(sent=view.weights, anchor=view.weights, version=view.version)
        return update.replace(ticket=here, delta=new, extras=extras), state

    return Correct(apply, init)


def _stale_update(
    delta: Tensor, w: Tensor, sent: Tensor, update: Update, view: ServerView
) -> tuple[StaleUpdate, tuple[float, float] | None]:
    """Return the stale update; and the inner products of its control point with δ and G, if they cost nothing."""
    drift, control = empty_pooled(w), update.extras.get(CONTROL)
    if (kernels := kernels_for(w, sent, delta)) is None:
        return StaleUpdate(delta, torch.sub(w, sent, out=drift), update, view), None
    whole, control_products = partition((0, len(w))), None
    if control is not None and kernels_for(w, control) is not None:
        *sums, x, y = whole.sums(kernels.compute_drift_and_control, 5, w, sent, delta, control, drift)
        control_products = float(x[0]), float(y[0])
    else:
        sums = whole.sums(kernels.compute_drift, 3, w, sent, delta, drift)
    return StaleUpdate(delta, drift, update, view, torch.from_numpy(np.concatenate(sums)).unbind()), control_products


def _subtract_drift(
    late: StaleUpdate, lam: Tensor | float, control: Tensor | None, control_products: tuple[float, float] | None
) -> tuple[Tensor, Tensor | None]:
    """Return δ − λ G, and the control point rotated with it."""
    delta, drift = late.delta, late.drift
    if isinstance(lam, float) and lam == 0:
        return delta, control
    new = empty_pooled(delta)
    if control_products is not None and late.products is not None and control is not None:
        share, (along, size, own) = float(lam), (float(p) for p in late.products)
        turn = rotation_coefficients(along, size, own, control_products, share) if share else (0.0, 0.0)
        if turn is not None:
            kernels, turned = kernels_for(delta), empty_pooled(delta)
            assert kernels is not None
            numbers = [as_scalar(x, delta) for x in (share, *turn)]
            partition((0, len(delta))).run(kernels.correct_with_control, delta, drift, control, *numbers, new, turned)
            return new, turned
    if late.products is not None:
        combine(delta, drift, -float(lam), out=new)
    elif isinstance(lam, Tensor):
        for d, g, out in blocks_reversed(delta, drift, new):
            torch.addcmul(d, g, lam, value=-1, out=out)
    else:
        torch.sub(delta, drift, alpha=lam, out=new)
    return new, None if control is None else rotate(control, delta, new)


def trust_position() -> Correct:
    """λ = 1 as FedAsync means it: the endpoint is the client's own weights, whatever the drift was."""

    def apply(update: Update, state: None, view: ServerView) -> tuple[Update, None]:
        here = update.ticket._replace(sent=view.weights, anchor=view.weights, version=view.version)
        delta, extras = update.local - view.weights, update.extras
        if CONTROL in extras:
            params = view.layout.params
            extras = {**extras, CONTROL: rotate(extras[CONTROL], params(update.delta), params(delta))}
        # `local` stays the client's weights to the bit, which sent + delta need not be
        return update.replace(ticket=here, delta=delta, extras=extras, endpoint=update.local), state

    return Correct(apply)


def subtract_drift(lam: float) -> Rule:
    """δ − λ G."""

    def rule(_: StaleUpdate, state: Any) -> tuple[float, Any]:
        return lam, state

    return rule


def orthogonal(alpha: float, theta: float, conflict: Conflict = "start") -> Rule:
    """OrthoCorrect in downhill signs: δ = −Δ and G = −b, so δ·G = Δ·b. The test `endpoint` has no ϑ."""
    theta = 0.0 if conflict == "endpoint" else theta

    def rule(late: StaleUpdate, state: Any) -> tuple[Tensor, Any]:
        along, size, own = late.products or _products(late.delta, late.drift, whole=theta != 0)
        limit = size if conflict == "endpoint" else theta * torch.sqrt(own * size)
        conflicts = along < limit if conflict == "endpoint" else along <= limit
        if theta >= 1 and conflict == "start":  # always a conflict, also for parallel vectors after rounding
            conflicts = torch.ones_like(conflicts)
        projection = along / size.clamp_min(torch.finfo(size.dtype).tiny)
        return torch.where(conflicts, projection, alpha), state

    return rule


def _products(delta: Tensor, drift: Tensor, *, whole: bool) -> Sequence[Tensor]:
    """Return δ·G, G·G, and δ·δ (0 unless `whole`)."""
    none = drift.new_zeros(())
    sums = [
        torch.stack([torch.dot(d, g), torch.dot(g, g), torch.dot(d, d) if whole else none])
        for d, g in blocks(delta, drift)
    ]
    return (sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)).unbind()


class Statistic(NamedTuple):
    """A measure of how close to convergence a run is, from 0 to 1, and its default switch."""

    init: Callable[[], Any]
    measure: Callable[[StaleUpdate, Any], tuple[float, Any]]
    switch: float


statistics: Registry[Statistic] = Registry("statistic", Statistic)

Smooth = Annotated[float, "how slowly the running mean forgets"]


@statistics.register("progress")
def progress() -> Statistic:
    """The used share of the budget; the default switch is half of it."""
    return Statistic(lambda: None, lambda late, state: (late.view.progress, state), 0.5)


@statistics.register("ratio")
def ratio(*, smooth: Smooth = 0.95) -> Statistic:
    """The shrinkage of the clients' displacements: 1 − the running mean of ‖δ‖ over its maximum so far.

    The mean begins with the first ‖δ‖: mean ← smooth · mean + (1 − smooth) ‖δ‖.
    """

    def measure(late: StaleUpdate, state: dict[str, float] | None) -> tuple[float, dict[str, float]]:
        size = torch.linalg.vector_norm(late.delta).item()
        mean = size if state is None else smooth * state["mean"] + (1 - smooth) * size
        most = mean if state is None else max(state["most"], mean)
        return (1 - mean / most if most > 0 else 0.0), {"mean": mean, "most": most}

    return Statistic(lambda: None, measure, 0.8)


_SAMPLE = 4096  # coordinates of a client that `agreement` stores


@dataclass(frozen=True)
class Comparisons(StateRecord):
    """The state of `agreement`."""

    clients: ClientTable  # the last displacement and end of every client, on a sample of the coordinates
    e: float  # the running mean of the differences of cosines
    count: int  # comparisons so far


@statistics.register("agreement")
def agreement(*, smooth: Smooth = 0.95) -> Statistic:
    """Which prediction the clients' next visits confirm: the position where a client ended, or its displacement.

    When a client trains again, from Θ, with displacement δ, its last visit gives two predictions of δ: Θ_i,last − Θ by
    position, δ_last by displacement. The value is (1 + e)/2, with e the running mean of cos(δ, Θ_i,last − Θ) −
    cos(δ, δ_last): above 0.5 position was the better prediction. It is 0 until there are two comparisons per client.
    Cosines are taken on an even sample of the coordinates, so a client costs the server little memory.
    """

    def measure(late: StaleUpdate, state: Comparisons) -> tuple[float, Comparisons]:
        me, n = late.update.ticket.client, len(late.delta)
        stride = ceil(n / _SAMPLE)
        delta, sent = late.delta[::stride].clone(), late.update.ticket.sent[:n:stride]
        clients, e, count = state.clients, state.e, state.count
        if (row := clients.get(me)) is not None:
            last, ended = row
            better = _cosine(delta, ended - sent) - _cosine(delta, last)
            e, count = (smooth * e + (1 - smooth) * better if count else better), count + 1
        value = min(max((1 + e) / 2, 0.0), 1.0) if count >= 2 * late.view.n_clients else 0.0
        clients.put(me, torch.stack([delta, sent + delta]))
        return value, Comparisons(clients, e, count)

    return Statistic(lambda: Comparisons(ClientTable(), 0.0, 0), measure, 0.5)


def _cosine(a: Tensor, b: Tensor) -> float:
    """Return cos(a, b); 0 if one of them is 0."""
    size = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    return float(inner(a, b) / size.clamp_min(torch.finfo(size.dtype).tiny))


def dynamic(statistic: str, *, switch: float | None = None, middle: float = 0.0, smooth: float = 0.95) -> Correct:
    """OrthoDyn: orthograd, then asgd while the statistic is within `middle` below the switch, orthopos above it.

    The phase follows the statistic of the moment: if it falls again, displacement is trusted again.
    """
    chosen = _statistic(statistic, smooth)
    limit = chosen.switch if switch is None else switch
    check(between(0, 1, switch=limit, middle=middle), decay(smooth=smooth))
    phases = (orthogonal(0.0, 0.0), subtract_drift(0.0), orthogonal(1.0, 0.0))

    def rule(late: StaleUpdate, state: Any) -> tuple[Tensor | float, Any]:
        value, state = chosen.measure(late, state)
        phase = 2 if value > limit else 1 if value > limit - middle else 0
        if late.view.notes is not None:
            late.view.notes.update(phase=phase, statistic=value)
        return phases[phase](late, None)[0], state

    return delay_correction(rule, lambda _: chosen.init())


def _statistic(name: str, smooth: float) -> Statistic:
    try:
        entry = statistics.find(name)
        return entry.make({"smooth": smooth} if "smooth" in (p.name for p in entry.params) else {})
    except BadInput as e:
        raise BadInput([p.replace("--statistic", "--method.statistic", 1) for p in e.problems]) from e
