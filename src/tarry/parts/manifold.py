"""Geodesics: curves γ(t) from Θ = γ(0) to Θ̂ = γ(1) along which a server steps (AsyncManifold, Sec. 5.1).

    line      Θ + t (Θ̂ − Θ)                                        FedAvg, FedAsync and most others
    bezier    (1−t)² Θ + 2t(1−t) φ + t² Θ̂                          φ = midpoint + the client's control point, rotated
    printed   (1−t)² Θ +  t(1−t) φ + t² Θ̂                          as the paper prints it: weights shrink on the way

A user's geodesic is a function (start, end, t, update) → weights; `--manifold ./mine.py:mine` names a factory of it. It
gets the trained weights; running statistics always go straight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import hypot, sqrt
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Geodesic, ServerView
from ..core.registry import Registry
from ..core.tickets import CONTROL, Update
from ..vector.blocks import blocks, blocks_reversed
from ..vector.fused import as_scalar, combine, kernels_for, partition
from ..vector.pool import empty_pooled

__all__ = [
    "bezier",
    "inner",
    "line",
    "manifolds",
    "printed_curve",
    "rotate",
    "step_along",
    "travel",
    "rotation_coefficients",
]

manifolds: Registry[Geodesic] = Registry("manifold", Callable)
_SIDE = 1e-3  # share of a square; below it the rounding errors of the sums show


def line(start: Tensor, end: Tensor, t: float, update: Update) -> Tensor:  # noqa: ARG001 - what a geodesic may read
    """A straight line."""
    return torch.lerp(start, end, t)


def bezier(start: Tensor, end: Tensor, t: float, update: Update) -> Tensor:
    """A quadratic Bézier curve; with no control point, or one in the middle, the straight line.

    With d = φ − (Θ + Θ̂)/2 it is the line plus 2t(1−t) d.
    """
    straight, d = torch.lerp(start, end, t), _control_offset(start, end, update)
    return straight if d is None else torch.add(straight, d, alpha=2 * t * (1 - t))


def printed_curve(start: Tensor, end: Tensor, t: float, update: Update) -> Tensor:
    """The curve with the coefficients of Eq. 28 and 31, which do not sum to 1."""
    middle, d = (start + end) / 2, _control_offset(start, end, update)
    control = middle if d is None else middle + d
    return (1 - t) ** 2 * start + t * (1 - t) * control + t**2 * end


def _control_offset(start: Tensor, end: Tensor, update: Update) -> Tensor | None:
    """Return the control point's displacement, rotated with the update's displacement onto this step's way (Eq. 17).

    A step that trusts position goes from Θ to Θ_i, which is not the displacement that the control point was learned on.
    """
    d = update.extras.get(CONTROL)
    return None if d is None else rotate(d, update.delta[: len(start)], end - start)


@manifolds.register("line")
def _line() -> Geodesic:
    """A straight line, the default of every method."""
    return line


@manifolds.register("bezier", paper="Aggregation on Learnable Manifolds for Asynchronous Federated Optimization")
def _bezier() -> Geodesic:
    """A quadratic Bézier curve through the control point that the client learned (asynccurve's clients send one)."""
    return bezier


@manifolds.register("printed", paper="Aggregation on Learnable Manifolds for Asynchronous Federated Optimization")
def _printed() -> Geodesic:
    """The curve as the paper prints it, without the 2 of a Bézier: weights shrink by up to a quarter half-way."""
    return printed_curve


def travel(along: Geodesic, view: ServerView, end: Tensor, t: float, update: Update) -> Tensor:
    """Return γ(t) for the trained weights, and the straight line (up to t = 1) for running statistics."""
    if along is line and t <= 1:
        return torch.lerp(view.weights, end, t, out=empty_pooled(end))
    params, n = view.layout.params, view.layout.n_params
    start = params(view.weights)
    new = along(start, params(end), t, update)
    if not isinstance(new, Tensor) or new.shape != start.shape:
        raise BadInput(
            f"--manifold: a geodesic gives {len(start)} weights, this one {getattr(new, 'shape', type(new))}"
        )
    return torch.cat([new, torch.lerp(view.weights[n:], end[n:], min(t, 1.0))]) if view.layout.stats else new


def step_along(along: Geodesic, view: ServerView, t: float, update: Update, *, left: Tensor | None = None) -> Tensor:
    """Return γ(t) on the way to W + Δ. This is the update's own displacement, so its control point is not rotated.

    `left` is filled with the old trained weights minus the new ones.
    """
    moved, w, n = view.displacement(update), view.weights, view.layout.n_params
    if along not in (line, bezier):
        new = travel(along, view, torch.add(w, moved, out=empty_pooled(w)), t, update)
        if left is not None:
            torch.sub(w[:n], new[:n], out=left)
        return new
    new, d = empty_pooled(w), update.extras.get(CONTROL) if along is bezier else None
    combine(w[:n], moved[:n], t, d, 2 * t * (1 - t), out=new[:n], left=left)
    torch.add(w[n:], moved[n:], alpha=min(t, 1.0), out=new[n:])
    return new


def rotate(d: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return d, rotated by the rotation R that takes the direction of a onto that of b in their plane (Eq. 17).

    With u = a/‖a‖, v = b/‖b‖, c = u·v and n the normalized part of v orthogonal to u: the part of d in the plane of u
    and n is rotated by the angle between u and v, the rest stays. If a and b are parallel or one is 0, d stays. If they
    are antiparallel the plane is not unique; the half turn in the plane of u and d gives −d. The cost is O(P).
    """
    if (kernels := kernels_for(d, a, b)) is not None:
        return _rotate_by_kernels(kernels, d, a, b)
    aa, bb, ab = _sum_rows([(torch.dot(x, x), torch.dot(y, y), torch.dot(x, y)) for x, y in blocks(a, b)])
    if aa == 0 or bb == 0:
        return d
    na, nb = aa.sqrt(), bb.sqrt()
    c = (ab / na / nb).clamp(-1, 1)
    sums = []
    for x, y, z in blocks_reversed(a, b, d):
        n = (y / nb).addcmul_(x, -c / na)
        sums.append((torch.dot(n, n), torch.dot(n, x) / na, inner(z, x) / na, inner(z, n)))
    nn, e, du, dn = _sum_rows(sums)  # e: what is left along u; of nearly parallel vectors the first leaves little else
    s = (nn - e * e).clamp_min(0).sqrt()
    if s <= 8 * torch.finfo(d.dtype).eps:
        return d if c > 0 else -d
    dn = (dn - e * du) / s
    by_u, by_n, turned = (du * (c - 1) - dn * s) / na, (du * s + dn * (c - 1)) / s, empty_pooled(d)
    for x, y, z, out in blocks(a, b, d, turned):
        n = (y / nb).addcmul_(x, -c / na).addcmul_(x, -e / na)
        torch.addcmul(z, x, by_u, out=out).addcmul_(n, by_n)
    return turned


def _rotate_by_kernels(kernels: Any, d: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`rotate` in three passes over memory, with n as a combination of a and b."""
    whole = partition((0, len(d)))
    aa, bb, ab = (float(s[0]) for s in whole.sums(kernels.products, 3, a, b))
    if aa == 0 or bb == 0:
        return d
    na, nb = sqrt(aa), sqrt(bb)
    c = min(max(ab / na / nb, -1.0), 1.0)
    n = as_scalar(-c / na, d), as_scalar(1 / nb, d)
    nn, ea, da, dn = (float(s[0]) for s in whole.sums(kernels.side_products, 4, a, b, d, *n))
    e, du = ea / na, da / na
    s = sqrt(max(nn - e * e, 0.0))
    if s <= 8 * torch.finfo(d.dtype).eps:
        return d if c > 0 else -d
    dn = (dn - e * du) / s
    by_u, by_n = (du * (c - 1) - dn * s) / na, (du * s + dn * (c - 1)) / s
    return combine(d, a, by_u - by_n * (c + e) / na, b, by_n / nb, out=empty_pooled(d))


def rotation_coefficients(
    along: float, size: float, own: float, control: tuple[float, float], lam: float
) -> tuple[float, float] | None:
    """Return the coefficients of a and g in Rd − d, for the rotation R that takes a onto a − λ g, λ not 0.

    `along`, `size` and `own` are a·g, g·g and a·a; `control` is d·a and d·g. The plane is that of a and g; its
    second axis is the part of g orthogonal to a, which does not shrink with λ, so that small angles are exact. Return
    None if that part is too short, or a is 0: the inner products are then not exact enough.
    """
    if not own > 0 or not (side := size - along * along / own) > _SIDE * size:
        return None
    na, side, k = sqrt(own), sqrt(side), along / own
    sign = -1.0 if lam > 0 else 1.0  # of the way to a − λ g along g's side
    forth, across = na - lam * along / na, abs(lam) * side
    length = hypot(forth, across)
    c, s = forth / length, across / length
    less = -s * s / (1 + c) if c > 0 else c - 1  # c − 1
    du, dn = control[0] / na, sign * (control[1] - k * control[0]) / side
    by_n = sign * (du * s + dn * less) / side
    return (du * less - dn * s) / na - by_n * k, by_n


def _sum_rows(terms: Sequence[tuple[Tensor, ...]]) -> Tensor:
    return torch.stack([torch.stack(row) for row in terms]).sum(0)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return a·b, to the bit the same for every memory alignment, which torch.dot is not; for vectors from clients."""
    return torch.sum(a * b)
