"""GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic Forgetting.

Luo, Li, Lan and Gao, CVPR 2023. Two quadratic programs QP(g; M) = argmin ½ ‖z − g‖² s.t. M z ≥ 0: of all directions
within 90° of what is remembered, the nearest to g (parts.cone).

    worker   x_0 = x, x_{−1} = where its last visit ended; for τ = 0 … I − 1
             g̃       = QP(∇f(x_τ); ∇f(x_{τ−1}), ∇f(x), x_τ − x)           all gradients on the batch at hand
             x_{τ+1} = x_τ − η_l g̃
    server   d_i     = x − x_i of the round's clients, d their mean
             D[i]    ← d_i if i is new, β_2 D[i] + d_i if it is known, β_2 D[i] for all who were not there
             m       = β_1 m̃ + d
             m̃       ← QP(m; D)
             x       ← x − η_g m̃
    memory   D holds at most m clients. A new one takes the place of a client that was not in this round: the one that
             took part least often since it was remembered; its count begins at 1

`side="server"` leaves plain workers (the paper's GradMA-S), `side="worker"` a plain server without momentum (GradMA-W).
With plain workers, memory=0 and beta1=0 it is FedAvg.

A constraint does not depend on the length of its row, so decay is delayed: at the next arrival of i, D[i] is multiplied
by β_2 for all the rounds since, and inner products of rows that did not change are reused. With β_2 = 0 nothing of
earlier rounds is remembered. ∇f(x) is left out of a visit's first step, where it is the gradient itself, which no
projection turns by more than 90°; and of the second, where it is ∇f(x_{τ−1}). x_τ − x has the released code's sign: a
step may not go further away from x along the way come so far. Of many local steps in one direction the first counts.

Our choices, and where the authors' released code differs. The programs are over the whole vector; the code has one for
each tensor (`projection="layer"`), and a margin, at 0, that is left out here. The mean weighs by examples, as in the
code; `weighting="uniform"` is the plain mean. The client stores x_{−1} between visits, as in the code of GradMA-W; that
of GradMA begins every visit with x. Where its solver fails the code continues uncorrected; here the run ends with
SolverFailed. β_1 = β_2 = 0.5 and m = N are those of the authors' example. A client is remembered when it arrives, so a
lost visit changes nothing; of clients with equal counts the one remembered longest is replaced; of a round larger than
m, only m are remembered. Momentum and weight decay of the client's optimizer act after the correction. Running
statistics have no direction: they go to the round's mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.client_table import ClientScalars, ClientTable
from ..core.errors import BadInput
from ..core.local_rule import ClientModel, Context, LocalRule, VisitInput, VisitOutput
from ..core.method import Method, ServerView
from ..core.parts import Aggregate
from ..core.search_space import Range
from ..core.state_tree import StateRecord
from ..core.task import Examples
from ..core.tickets import CONTROL, Update
from ..parts.aggregate import Weighting, round_mean
from ..parts.cone import Angles, many, nearest, products, solver, within
from ..parts.project import stretches
from ..parts.rounds import barrier
from ..parts.step import add
from .registry import methods

__all__ = ["gradma"]

Side = Literal["both", "worker", "server"]
ProgramScope = Literal["full", "layer"]


@dataclass(frozen=True)
class MemoryWorker(LocalRule):
    """The worker: every step is within 90° of the gradients at x_{τ−1} and x, and of x_τ − x."""

    by: ProgramScope

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        x, cuts = visit.layout.params(visit.weights), stretches(visit.layout, self.by)
        return visit.weights, {"x": x, "stretches": cuts, "last": visit.memory.get("last"), "steps": visit.n_steps}

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:
        return model.init(w), 0, context["last"], torch.zeros_like(w[0])

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        inner, tau, before, conflicts = state
        g, loss = model.grad(w, batch)
        rows = [] if before is None else [model.grad(before, batch, still=True)[0]]
        if tau > 1:
            rows.append(model.grad(context["x"], batch, still=True)[0])
        if tau > 0:
            rows.append(w - context["x"])
        if rows:
            g, conflict = within(g, rows, context["stretches"])
            conflicts = conflicts + conflict if self.diagnose else conflicts
        new, inner = model.apply_gradient(w, g, inner)
        return new, (inner, min(tau + 1, 2), w, conflicts), loss  # from the third step on all are alike

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        notes = {"corrected": state[3] / context["steps"]} if self.diagnose else {}
        return VisitOutput(memory={"last": w[: len(context["x"])]}, notes=notes)


@dataclass(frozen=True)
class MemoryState(StateRecord):
    """The mean of the round under way, and what the server remembers."""

    mean: Any  # the state of the mean inside
    D: ClientTable  # D_i of every client that is remembered
    count: ClientScalars  # visits remembered
    since: ClientScalars  # server steps at a client's last visit
    momentum: Tensor | None  # m of the last step
    order: list[int]  # the clients, as the rows of `gram`
    gram: Tensor | None  # the inner products of the D_i, by stretch


@dataclass(frozen=True)
class MemoryServer:
    """The server, with the mean of a round inside. Displacements point downhill here: d_i, D, m and m̃ change sign."""

    mean: Aggregate
    beta1: float
    beta2: float
    memory: int | None
    by: ProgramScope

    def init(self, weights: Tensor) -> MemoryState:
        if self.memory != 0:
            solver()  # raise before any training if scipy is missing
        return MemoryState(self.mean.init(weights), ClientTable(), ClientScalars(), ClientScalars(), None, [], None)

    def apply(self, update: Update | None, state: MemoryState, view: ServerView) -> tuple[Update | None, MemoryState]:
        if update is not None and self.memory != 0:
            self.remember(update, state, view)
        pooled, mean = self.mean(update, state.mean, view)
        state = replace(state, mean=mean)
        if pooled is None:
            return None, state
        n, d = view.layout.n_params, view.layout.params(pooled.delta)
        m = d if state.momentum is None else torch.add(d, state.momentum, alpha=self.beta1)
        if self.memory != 0:
            m, state = self.corrected(m, state, view)
        delta = torch.cat([m, pooled.delta[n:]]) if view.layout.stats else m
        return pooled.replace(delta=delta), replace(state, momentum=m if self.beta1 else None)

    def remember(self, update: Update, state: MemoryState, view: ServerView) -> None:
        i, D, count, since = update.ticket.client, state.D, state.count, state.since
        d, old = view.layout.params(update.delta), D.get(i)
        d = d if update.weight == 1 else d * update.weight
        D.put(i, d if old is None else torch.add(d, old, alpha=self.beta2 ** (view.version - since[i])))
        count[i], since[i] = count.get(i, 0) + 1, view.version

    def forget(self, state: MemoryState, view: ServerView) -> None:
        D, count, since = state.D, state.count, state.since
        here = {i for i in D if since[i] == view.version}
        replaced = sorted(D, key=lambda i: (i in here, count[i]))[: 0 if self.memory is None else -self.memory]
        faded = set() if self.beta2 else set(D) - here
        for i in {*replaced, *faded}:
            for rows in (D, count, since):
                rows.pop(i)

    def corrected(self, m: Tensor, state: MemoryState, view: ServerView) -> tuple[Tensor, MemoryState]:
        """m̃, and the Gram matrices of what is remembered, of which only the rows of this round are new."""
        self.forget(state, view)
        D, order, cuts = state.D, list(state.D), stretches(view.layout, self.by)
        rows = [D[i] for i in order]
        new = [place for place, i in enumerate(order) if state.since[i] == view.version]
        inner = torch.zeros(len(cuts), 1 + len(rows), 1 + len(rows), dtype=torch.float64, device=m.device)
        if state.gram is not None:
            inner[:, 1:, 1:] = _reorder(state.gram, state.order, order)
        places = [0, *(1 + place for place in new)]
        for own, at in zip(inner, cuts, strict=True):
            own[places] = products([m, *(rows[place] for place in new)], [m, *rows], at)
            own[:, places] = own[places].T
        angles = Angles.of(inner)
        v = many(angles)
        active = v.any(0).nonzero().flatten().tolist()
        if view.notes is not None:
            view.notes["active"], view.notes["remembered"] = len(active), len(rows)
        m = nearest(m, [rows[place] for place in active], (v * angles.scale)[:, active], cuts)
        return m, replace(state, order=order, gram=inner[:, 1:, 1:])


def _reorder(gram: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """Return the inner products in another order; 0 for clients without any."""
    where = {i: place for place, i in enumerate(old)}
    places = torch.tensor([where.get(i, len(old)) for i in new], device=gram.device)
    padded = torch.nn.functional.pad(gram, (0, 1, 0, 1))
    return padded[:, places][:, :, places]


@methods.register(
    "gradma",
    paper="Luo et al. 2023, GradMA: A Gradient-Memory-based Accelerated Federated Learning",
    use="Few of many clients a round, with data that differ; begin with side=server: the workers' side learns slowly.",
    space={"beta1": Range(0.1, 0.9), "beta2": Range(0.1, 0.9)},
)
def gradma(
    *,
    beta1: Annotated[float, "β_1, the share of the last step that is added to the next"] = 0.5,
    beta2: Annotated[float, "β_2, how slowly a client's remembered displacements fade from round to round"] = 0.5,
    eta: Annotated[float, "η_g, the server's learning rate"] = 1.0,
    memory: Annotated[int | None, "m, how many clients the server remembers; none = all, 0 = none of them"] = None,
    side: Annotated[Side, "who corrects directions: workers and server, or one of them (GradMA-W, GradMA-S)"] = "both",
    projection: Annotated[
        ProgramScope, "one program for all weights, or one per layer as in the authors' code"
    ] = "full",
    weighting: Weighting = "examples",
) -> Method:
    """Rounds whose steps, the workers' and the server's, stay within 90° of the gradients they remember."""
    _check(beta1, beta2, memory)
    server = MemoryServer(round_mean(weighting, carries=frozenset()), beta1, beta2, memory, projection)
    return Method(
        "gradma",
        staleness="always 0",
        local=LocalRule() if side == "server" else MemoryWorker(projection),
        aggregate=round_mean(weighting)
        if side == "worker"
        else Aggregate(server.apply, server.init, dropped_extras=frozenset({CONTROL})),
        step=add(eta),
        dispatch=barrier(),
    )


def _check(beta1: float, beta2: float, memory: int | None) -> None:
    problems = []
    if not 0 <= beta1 < 1:
        problems.append(f"--method.beta1 {beta1}: must be in [0, 1)")
    if not 0 <= beta2 <= 1:
        problems.append(f"--method.beta2 {beta2}: must be between 0 and 1")
    if memory is not None and memory < 0:
        problems.append(f"--method.memory {memory}: must be 0 or more, or none for all clients")
    if problems:
        raise BadInput(problems)
