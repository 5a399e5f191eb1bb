"""Per-FedAvg (Fallah et al. 2020): the client's step of Algorithm 1, on D, D' and D''.

    w̃ = w − α ∇f(w; D)
    w ← w − β (I − α ∇²f(w; D'')) ∇f(w̃; D')

fo leaves the Hessian out; hf takes (∇f(w + δg) − ∇f(w − δg)) / 2δ for ∇²f g. Which examples are in D, D' and D'' the
paper leaves open: here every second one of the batch, or every third; all of it where there are fewer. The parts change
places with every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.reference.problem import Problem, Vec


def gradients(problem: Problem, m: int, n: int, k: int) -> list[Callable[[Vec], Vec]]:
    """The gradient of client m's loss on each of n parts of its data, which change places from step k to the next."""
    x, y = problem.data[m]
    parts = [(x[i::n], y[i::n]) for i in range(n)] if len(y) >= n else [(x, y)] * n
    parts = parts[k % n :] + parts[: k % n]
    return [lambda w, part=part: replace(problem, data=[part]).gradient(0, w) for part in parts]  # type: ignore[misc]


def descend_meta(
    problem: Problem, m: int, w: Vec, *, steps: int, beta: float, alpha: float, delta: float | None = None
) -> Vec:
    """hf where there is a delta."""
    for k in range(steps):
        if delta is None:
            on_d, on_d1 = gradients(problem, m, 2, k)
            w = w - beta * on_d1(w - alpha * on_d(w))
        else:
            on_d, on_d1, on_d2 = gradients(problem, m, 3, k)
            g = on_d1(w - alpha * on_d(w))
            hessian_g = (on_d2(w + delta * g) - on_d2(w - delta * g)) / (2 * delta)
            w = w - beta * (g - alpha * hessian_g)
    return w
