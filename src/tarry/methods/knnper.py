"""kNN-Per: Personalized Federated Learning through Local Memorization (Marfoq, Neglia, Vidal, Kameni, ICML 2022).

    training   FedAvg; φ(x): what the model makes of x before its head
    client     keeps (φ(x_i), y_i) of all its own examples
    answer     h(x) = λ h_kNN(x) + (1 − λ) h_global(x)            h_global: softmax of the model's outputs
               h_kNN(x)_c ∝ Σ_{i among the k nearest} [y_i = c] exp(−‖φ(x) − φ(x_i)‖² / (d σ))

The paper writes exp(−distance); its authors' code is followed: squared Euclidean distances over the features' number d,
with a scale σ = 1. Everything is stored (capacity 1). The paper tunes λ for each client on examples it holds out; no
example is held out here: λ is the one of 0, 0.1, …, 1 that answers most of the client's own examples rightly, each of
them asked of its k nearest among the others, the likelier one where several do. A client of one example, who has no
others, takes λ = 0.

With --personalise E the model is tuned for E epochs first (FedSOL's Table 9); E = 0 is the paper's own. It goes with
what clients do: `--method orthofl --local knn-per --personalise 0`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core.errors import BadInput
from ..core.local_rule import Functions
from ..core.method import Method, Personal
from ..core.task import Examples
from ..parts.aggregate import round_mean
from ..parts.dispatch import barrier
from .registry import methods

__all__ = ["knn_per"]

_CHUNK = 500  # examples whose distances to all others are held at once
_GRID = [i / 10 for i in range(11)]  # λ is one of these


@dataclass(frozen=True)
class Neighbours:
    """A client's own examples beside its model."""

    k: int
    lam: float | None
    scale: float

    def __call__(self, vec: Tensor, own: Examples, f: Functions) -> Callable[[Tensor], Tensor]:
        x, y = own
        if y.is_floating_point() or y.ndim != 1:
            raise BadInput("--method knn-per: neighbours vote for classes, and this task has none; use --method fedavg")
        keys, says = read(vec, x, f)
        votes = one_hot(y, says.shape[1]).to(says.dtype)
        lam = self.chosen(keys, says, votes) if self.lam is None else self.lam

        def answers(x: Tensor) -> Tensor:
            features, says = read(vec, x, f)
            return torch.lerp(says, self.vote(features, keys, votes), lam)

        return answers

    def vote(self, features: Tensor, keys: Tensor, votes: Tensor, *, of_others: bool = False) -> Tensor:
        """h_kNN; `of_others`: the features are the keys, and none of them is its own neighbour."""
        k, out = min(self.k, len(keys) - of_others), list[Tensor]()
        for start in range(0, len(features), _CHUNK):
            part = features[start : start + _CHUNK]
            far = torch.cdist(part, keys, compute_mode="donot_use_mm_for_euclid_dist")
            if of_others:
                far.diagonal(start).fill_(torch.inf)
            near, who = far.topk(k, largest=False)
            weight = torch.softmax(-(near**2) / (keys.shape[1] * self.scale), dim=1)
            out.append((weight[:, :, None] * votes[who]).sum(1))
        return torch.cat(out)

    def chosen(self, keys: Tensor, says: Tensor, votes: Tensor) -> float:
        """The λ by which the client's own examples are told best, each by the others."""
        if len(keys) == 1:
            return 0.0
        near = self.vote(keys, keys, votes, of_others=True)

        def merit(lam: float) -> tuple[float, float]:
            mixed = torch.lerp(says, near, lam)
            likely = (mixed * votes).sum(1)
            right = (mixed.argmax(1) == votes.argmax(1)).sum()
            return right.item(), likely.clamp_min(torch.finfo(likely.dtype).tiny).log().sum().item()

        return max(_GRID, key=merit)


def read(vec: Tensor, x: Tensor, f: Functions) -> tuple[Tensor, Tensor]:
    """φ(x), and the model's softmax."""
    parts = torch.split(x, _CHUNK)
    says = torch.cat([f.outputs(vec, part) for part in parts])
    return torch.cat([f.features(vec, part) for part in parts]), torch.softmax(says, dim=1)


@methods.register(
    "knn-per",
    paper="Marfoq et al. 2022, Personalized Federated Learning through Local Memorization",
    use="Clients that can keep their examples at hand when they answer; score it with --personalise 0.",
)
def knn_per(
    *,
    k: Annotated[int, "how many of its own examples a client asks"] = 10,
    lam: Annotated[float | None, "λ, how much they count against the model; none = each client chooses"] = None,
    scale: Annotated[float, "σ, how far off a neighbour may be and still count"] = 1.0,
    weighting: Annotated[Literal["examples", "uniform"], "clients weigh by their examples, or all alike"] = "examples",
) -> Method:
    """FedAvg; then every client answers by its own nearest examples beside the model (--personalise)."""
    problems = [f"--method.k {k}: must be 1 or more"] if k < 1 else []
    problems += [f"--method.lam {lam}: must be between 0 and 1"] if lam is not None and not 0 <= lam <= 1 else []
    problems += [f"--method.scale {scale}: must be above 0"] if not scale > 0 else []
    if problems:
        raise BadInput(problems)
    return Method(
        "knn-per",
        staleness="always 0",
        aggregate=round_mean(weighting),
        dispatch=barrier(),
        personal=Personal(predict=Neighbours(k, lam, scale)),
    )
