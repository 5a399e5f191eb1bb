"""Fed-OGD (Li et al.), in gradient sign throughout: G_k = (w − w_k)/η_l points uphill, as g does.

    M        the latest G_k of every client; M_1: those who did not answer within this epoch, M_2: those who did
    b_i      the mean of M_i                              w ← w − η_g η_l (b_1 + b_2)
    client   g − (⟨g, b⟩/‖b‖²) b where ⟨g, b⟩ < 0         b: of the group the client is not in

η_l is the clients' rate of the epoch, η decay^t: of one that begins there for who is handed work, of one that ends for
the step.

`algorithm_1` is the paper's loop over epochs, for clients that answer every 1st, 3rd, 5th … epoch. `FedOGD` is the
server that a clock plays; without anything in M an epoch goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tests.reference.problem import Problem, Vec


def client_update(
    problem: Problem, k: int, w: Vec, b: Any, *, steps: int, eta_l: float, projection: str = "conflict"
) -> Vec:
    """G_k after so many full-batch steps. With the projection "basis", b is a list of vectors."""
    start = w
    for _ in range(steps):
        g = problem.gradient(k, w)
        if projection == "basis":
            g = g - in_span(g, b)
        elif b is not None and b.any() and (projection == "always" or (projection == "conflict" and g @ b < 0)):
            g = g - (g @ b) / (b @ b) * b
        w = w - eta_l * g
    return (start - w) / eta_l


def in_span(g: Vec, vectors: Sequence[Vec]) -> Vec:
    """The projection of g onto the span of the vectors, by a singular value decomposition of their directions."""
    units = [v / np.linalg.norm(v) for v in vectors if v.any()]
    if not units:
        return np.zeros_like(g)
    _, sizes, axes = np.linalg.svd(np.stack(units), full_matrices=False)
    axes = axes[sizes**2 > 1e-6 * sizes[0] ** 2]
    return axes.T @ (axes @ g)  # type: ignore[no-any-return]


def mean(M: Collection[Vec]) -> Vec | None:
    return sum(M) / len(M) if M else None  # type: ignore[no-any-return]


def algorithm_1(
    problem: Problem, every: Sequence[int], *, epochs: int, steps: int, eta_g: float, eta_l: float
) -> list[Vec]:
    """w after each epoch. Client k starts at epochs 0, every[k], 2 every[k], … and answers at the next of them."""
    w = [problem.w0]
    b_1: list[Vec | None] = [None]
    b_2: list[Vec | None] = [None]
    M_1: dict[int, Vec] = {}
    M_2: dict[int, Vec] = {}
    for t in range(1, epochs + 1):
        for k, n in enumerate(every):
            if t % n == 0:
                M, other = (M_2, b_1) if n == 1 else (M_1, b_2)
                M[k] = client_update(problem, k, w[t - n], other[t - n], steps=steps, eta_l=eta_l)
        b_1.append(mean(M_1.values()))
        b_2.append(mean(M_2.values()))
        w.append(w[-1] - eta_g * eta_l * sum(b for b in (b_1[-1], b_2[-1]) if b is not None))
    return w[1:]


class FedOGD:
    """The server. Groups are told at the hand-out when `announced`, else seen at the end of each epoch."""

    def __init__(
        self,
        w: Vec,
        *,
        n: int,
        eta_g: float = 0.5,
        eta_l: float,
        epoch: float | None = None,
        weighting: str = "groups",
        cache: bool = True,
        announced: bool = False,
        decay: float = 1.0,
        stored: int = 0,
    ):
        self.w, self.n, self.eta_g, self.eta_l, self.epoch, self.decay = w, n, eta_g, eta_l, epoch, decay
        self.weighting, self.cache, self.announced = weighting, cache, announced
        self.given = epoch is not None  # else it is the shortest of the clients' first visits
        self.M: dict[int, Vec] = {}
        self.straggles: dict[int, bool] = {}  # in M_1?
        self.was_late: dict[int, bool] = {}  # at its last visit
        self.in_time: set[int] = set()  # came in this epoch, having begun with it
        self.b_1: Vec | None = None
        self.b_2: Vec | None = None
        self.stored, self.past_1, self.past_2 = stored, list[Vec](), list[Vec]()

    def base(self, k: int) -> Any:
        straggles = (self.was_late if self.announced else self.straggles).get(k, False)
        if self.stored:
            return (self.past_2 if straggles else self.past_1)[-self.stored :]
        return self.b_2 if straggles else self.b_1

    def receive(self, k: int, G: Vec, seconds: float, *, late: bool) -> None:
        """`late`: not within the epoch it was handed out in."""
        if not self.given and k not in self.was_late:
            self.epoch = seconds if self.epoch is None else min(self.epoch, seconds)
        if self.announced:
            self.straggles[k] = self.was_late.get(k, late)
        self.was_late[k] = late
        if not late:
            self.in_time.add(k)
        self.M[k] = G

    def end_of_epoch(self) -> bool:
        if not self.M:
            return False
        if not self.announced:
            self.straggles = {k: k not in self.in_time for k in self.was_late}
        self.b_1 = mean([G for k, G in self.M.items() if self.straggles[k]])
        self.b_2 = mean([G for k, G in self.M.items() if not self.straggles[k]])
        self.past_1 += [] if self.b_1 is None else [self.b_1]
        self.past_2 += [] if self.b_2 is None else [self.b_2]
        if self.weighting == "groups":
            total = sum(b for b in (self.b_1, self.b_2) if b is not None)
        else:
            total = sum(self.M.values()) / self.n
        self.w = self.w - self.eta_g * self.eta_l * total
        self.eta_l *= self.decay
        self.in_time = set()
        if not self.cache:
            self.M = {}
        return True
