"""Per-FedAvg: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach
(Fallah, Mokhtari, Ozdaglar, NeurIPS 2020).

    goal     min_w (1/n) Σ_i f_i(w − α ∇f_i(w))                  a model that is good after one step at each client
    client   w̃ = w − α ∇f(w; D)                                                                Algorithm 1
             w ← w − β (I − α ∇²f(w; D'')) ∇f(w̃; D')
      fo     the Hessian is left out:  w ← w − β ∇f(w̃; D')
      hf     ∇²f(w; D'') g ≈ (∇f(w + δg; D'') − ∇f(w − δg; D'')) / 2δ,   g = ∇f(w̃; D')
    server   W ← mean of the cohort's w
    at last  a client's own model: steps w ← w − α ∇f(w) over its own examples

D, D' and D'' are cut from the step's batch: every second example (fo), or every third (hf), so they are disjoint, and a
step costs about one gradient (fo) or four thirds (hf) of the batch. They change places from step to step, so that all
examples serve as each where a batch holds all there are. A batch of fewer examples serves whole as each of them. β is
the client's optimizer (--lr), which the meta-gradient goes through; the paper's is SGD with 0.001. The paper's mean is
plain (`weighting="uniform"`); the default weighs by examples, as FedAvg does. Running statistics move in the pass over
D only.

--personalize E tunes for E epochs of steps of size α without momentum: that is what w was trained to be good at. The
paper's test, one step of gradient descent, is --personalize 1 where the batch is all of a client's examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.local_rule import ClientModel, Context, LocalRule
from ..core.method import Method, Personalization
from ..core.search_space import Range
from ..core.task import Examples
from ..parts.aggregate import Weighting
from ..parts.checks import above, check
from ..parts.rounds import rounds
from .registry import methods

__all__ = ["perfedavg"]

Order = Literal["fo", "hf"]


def split_batch(batch: Examples, n: int) -> list[Examples]:
    """The batch in n disjoint parts, every n-th example each; too few examples are all in each part."""
    x, y = batch
    return [(x[i::n], y[i::n]) for i in range(n)] if len(x) >= n else [batch] * n


@dataclass(frozen=True)
class Meta(LocalRule):
    """Descends f(w − α ∇f(w)) instead of f(w)."""

    alpha: float
    form: Order
    delta: float

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:  # noqa: ARG002
        return model.init(w), 0

    def step(
        self,
        w: Tensor,
        batch: Examples,
        context: Context,  # noqa: ARG002
        state: Any,
        model: ClientModel,
    ) -> tuple[Tensor, Any, Tensor]:
        inner, k = state
        parts = split_batch(batch, 3 if self.form == "hf" else 2)
        first, second, *third = (parts[(k + i) % len(parts)] for i in range(len(parts)))
        g, loss = model.grad(w, first)
        g, _ = model.grad(torch.add(w, g, alpha=-self.alpha), second, still=True)
        if third:
            up, _ = model.grad(torch.add(w, g, alpha=self.delta), third[0], still=True)
            down, _ = model.grad(torch.add(w, g, alpha=-self.delta), third[0], still=True)
            g = torch.add(g, up - down, alpha=-self.alpha / (2 * self.delta))
        w, inner = model.apply_gradient(w, g, inner)
        return w, (inner, k + 1), loss


@dataclass(frozen=True)
class Adapt(LocalRule):
    """Steps of size α, whatever the optimizer."""

    alpha: float

    def init(self, w: Tensor, context: Context, model: ClientModel) -> None:  # noqa: ARG002
        return None

    def step(
        self,
        w: Tensor,
        batch: Examples,
        context: Context,  # noqa: ARG002
        state: Any,
        model: ClientModel,
    ) -> tuple[Tensor, Any, Tensor]:
        g, loss = model.grad(w, batch)
        return torch.add(w, g, alpha=-self.alpha), state, loss


@methods.register(
    "perfedavg",
    paper="Fallah et al. 2020, Personalized Federated Learning with Theoretical Guarantees: A MAML Approach",
    use="A model to be tuned by every client with a few steps of its own; score it with --personalize.",
    space={"alpha": Range(1e-3, 1e-1, log=True)},
)
def perfedavg(
    *,
    alpha: Annotated[float, "α, the size of the step that clients will make on their own"] = 0.01,
    form: Annotated[Order, "what is made of the Hessian: first order (left out), or Hessian-free (differences)"] = "fo",
    delta: Annotated[float, "hf: δ, how far to either side gradients are taken"] = 0.001,
    weighting: Weighting = "examples",
) -> Method:
    """Rounds whose clients learn a start that is good after a step on each client's own data (MAML)."""
    check(above(0, alpha=alpha, delta=delta))
    local = Meta(alpha, form, delta if form == "hf" else 0.0)
    return rounds("perfedavg", weighting, local=local, personalization=Personalization(tune=Adapt(alpha)))
