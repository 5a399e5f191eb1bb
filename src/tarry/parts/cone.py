"""Projection onto the cone {z : M z ≥ 0}: the vector nearest to g that lies within 90° of every row of M.

    min ½ ‖z − g‖²  subject to  M z ≥ 0          z = g + Mᵀ v,  v ≥ 0,  M z ≥ 0,  v_i (M z)_i = 0
    dual   min ½ vᵀ K v + bᵀ v  over v ≥ 0       K = M Mᵀ, b = M g: one unknown a row, however long the rows

Both solvers take cosines in double precision (`Angles`): the length of a row does not change its half-space.

    few(angles)      for a few rows, exact: of the 2^k sets of rows that z may be orthogonal to, the one is taken whose
                     solution violates the conditions above least. No branch on a value: for a client's step
    many(angles)     for any number of rows, by scipy's non-negative least squares; a result that violates the
                     conditions above raises SolverFailed: for a server

Without a conflict v is 0 and z is g. A row of zeros constrains nothing. With parallel rows, or more rows than
dimensions, v is one of several solutions, and z is still unique. Vectors are cut into stretches, in order and without
gaps (one, or the layers of a model), with a quadratic program for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import BadInput, SolverFailed

__all__ = ["Angles", "few", "many", "nearest", "products", "solver", "within"]

TOLERANCE = 1e-6  # cosine; the largest violation of a constraint that is accepted
_AT_ONCE = 1 << 22  # values in double precision at a time, to bound the memory


class Angles(NamedTuple):
    """The input of any number of quadratic programs: cosines (0 with a row of zeros) and lengths."""

    rows: Tensor  # ... × k × k
    g: Tensor  # ... × k
    scale: Tensor  # ... × k: ‖g‖ / ‖row‖, from multipliers of unit vectors to those of the vectors as they are

    @classmethod
    def of(cls, inner: Tensor) -> Angles:
        """Return the angles from the inner products of (g, row 1, row 2, ...) with each other."""
        square = torch.diagonal(inner, dim1=-2, dim2=-1)
        inverse = torch.where(square > 0, square.rsqrt(), 0.0)
        cosines = inner * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
        return cls(cosines[..., 1:, 1:], cosines[..., 1:, 0], inverse[..., 1:] * square[..., :1].sqrt())


def few(angles: Angles) -> Tensor:
    """Return the multipliers of a few unit rows; NaN if a cosine is NaN."""
    K, b = angles.rows, angles.g
    on, both, rest = (mask.to(b.device) for mask in _sets(b.shape[-1]))
    equations = torch.addcmul(rest, K.unsqueeze(-3), both)
    v = torch.linalg.solve_ex(equations, (b.unsqueeze(-2) * -on).unsqueeze(-1))[0].squeeze(-1)
    best = _violation(K, b, v, on).argmin(-1)
    return torch.take_along_dim(v, best[..., None, None], dim=-2).squeeze(-2).clamp_min(0)


@cache
def _sets(k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return all sets of k rows as 0 and 1; for each, a mask of the entries of K, and a diagonal of ones for the rest.

    Small sets come first: of several solutions the first is taken, and that of the empty set is exact.
    """
    chosen = [c for size in range(k + 1) for c in combinations(range(k), size)]
    on = torch.tensor([[i in c for i in range(k)] for c in chosen]).double()
    return on, on.unsqueeze(-1) * on.unsqueeze(-2), torch.diag_embed(1 - on)


def _violation(K: Tensor, b: Tensor, v: Tensor, on: Tensor) -> Tensor:
    """Return the largest violation of the conditions by each v with its rows on, as a cosine; ∞ for NaN."""
    slack = b.unsqueeze(-2) + v @ K
    wrong = torch.maximum(-torch.minimum(v, slack), slack * on).amax(-1)
    return wrong.nan_to_num(nan=torch.inf).clamp_min(0)


def within(g: Tensor, rows: Sequence[Tensor], stretches: Sequence[slice]) -> tuple[Tensor, Tensor]:
    """Return g projected with a few rows; and whether there was a conflict."""
    flat = torch.stack([g, *rows]).double()
    angles = Angles.of(torch.stack([flat[:, at] @ flat[:, at].T for at in stretches]))
    v = few(angles)
    return nearest(g, rows, v * angles.scale, stretches), (v > 0).any()


def nearest(g: Tensor, rows: Sequence[Tensor], v: Tensor, stretches: Sequence[slice]) -> Tensor:
    """Return g + Mᵀ v, with a v for every stretch."""
    parts = [g[at] for at in stretches]
    for i, (at, own) in enumerate(zip(stretches, v.to(g.dtype), strict=True)):
        for row, coefficient in zip(rows, own, strict=True):
            parts[i] = torch.addcmul(parts[i], row[at], coefficient)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def products(left: Sequence[Tensor], right: Sequence[Tensor], at: slice) -> Tensor:
    """Return the inner products of one stretch of vectors in double precision, computed piece by piece."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=right[0].device)
    for piece in _pieces(at, max(1, _AT_ONCE // (len(left) + len(right)))):
        a, b = (torch.stack([v[piece] for v in vectors]).double() for vectors in (left, right))
        total += a @ b.T
    return total


def _pieces(at: slice, size: int) -> Iterator[slice]:
    return (slice(i, min(i + size, at.stop)) for i in range(at.start, at.stop, size))


def many(angles: Angles) -> Tensor:
    """Return the multipliers of any number of unit rows, one program after the other."""
    return torch.stack([_solve(*program) for program in zip(angles.rows, angles.g, strict=True)])


def _solve(K: Tensor, b: Tensor) -> Tensor:
    """v ← argmin ½ vᵀ K v + bᵀ v + ½ ε² ‖v − v_before‖² over v ≥ 0, twice, as min ‖R v − c‖ with RᵀR = K + ε².

    The second solution is exact up to rounding, unless rows are nearly dependent. Even then, with ε², no constraint is
    violated by more than ε.
    """
    v = torch.zeros_like(b)
    if bool((b >= 0).all()):
        return v
    pull = (TOLERANCE / 2) ** 2
    try:
        R = torch.linalg.cholesky(K + pull * torch.eye(len(b)).to(K), upper=True)
        for _ in range(2):
            c = torch.linalg.solve_triangular(R.T, (pull * v - b).unsqueeze(-1), upper=False).squeeze(-1)
            found = solver()(R.cpu().numpy(), c.cpu().numpy(), maxiter=10 * len(b))[0]
            v = torch.from_numpy(found).to(K)
    except (RuntimeError, ValueError) as e:  # no convergence, or NaN in the input
        raise SolverFailed(_no_solution(len(b), str(e))) from e
    wrong = _violation(K, b, v.unsqueeze(0), v > 0).item()
    if not wrong <= TOLERANCE:
        raise SolverFailed(_no_solution(len(b), f"what was found breaks a condition by {wrong:.1e}"))
    return v


def _no_solution(rows: int, why: str) -> str:
    return f"no direction within 90° of {rows} remembered ones was found ({why}); remember fewer of them"


def solver() -> Callable[..., Any]:
    """Return scipy's non-negative least squares; scipy is imported here only, when it is needed."""
    try:
        nnls: Callable[..., Any] = import_module("scipy.optimize").nnls
    except ModuleNotFoundError as e:
        raise BadInput(f"scipy is needed for this and cannot be imported ({e}): pip install scipy") from e
    return nnls
