"""kNN-Per: Personalized Federated Learning through Local Memorization (Marfoq, Neglia, Vidal, Kameni, ICML 2022).

    training   FedAvg; φ(x): the features of x, the inputs of the model's head
    client     keeps (φ(x_i), y_i) of all its own examples
    prediction h(x) = λ h_kNN(x) + (1 − λ) h_global(x)            h_global: softmax of the model's outputs
               h_kNN(x)_c ∝ Σ_{i among the k nearest} [y_i = c] exp(−‖φ(x) − φ(x_i)‖² / (d σ))

The paper writes exp(−distance); its authors' code is followed: squared Euclidean distances over the features' number d,
with a scale σ = 1. Everything is stored (capacity 1). The paper tunes λ for each client on held-out examples; no
example is held out here: λ is the one of 0, 0.1, …, 1 that predicts most of the client's own examples correctly, each
from its k nearest among the other ones; of several, the one with the highest likelihood. A client of one example takes
λ = 0.

With --personalize E the model is tuned for E epochs first (FedSOL's Table 9); E = 0 is the paper's own. It belongs to
the client rule: `--method orthofl --local knn-per --personalize 0`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core.errors import BadInput
from ..core.local_rule import ClientModel
from ..core.method import Method, Personalization
from ..core.task import Examples
from ..parts.aggregate import Weighting
from ..parts.checks import above, at_least, between, check
from ..parts.rounds import rounds
from .registry import methods

__all__ = ["knn_per"]

_CHUNK = 500  # examples whose distances to all others are held at once
_GRID = [i / 10 for i in range(11)]  # λ is one of these


@dataclass(frozen=True)
class Neighbors:
    """Predictions from a client's nearest own examples, mixed with its model's."""

    k: int
    lam: float | None
    scale: float

    def __call__(self, vec: Tensor, own: Examples, model: ClientModel) -> Callable[[Tensor], Tensor]:
        x, y = own
        if y.is_floating_point() or y.ndim != 1:
            raise BadInput("--method knn-per: neighbors vote for classes, and this task has none; use --method fedavg")
        keys, outputs = features_and_outputs(vec, x, model)
        votes = one_hot(y, outputs.shape[1]).to(outputs.dtype)
        lam = self.best_lambda(keys, outputs, votes) if self.lam is None else self.lam

        def predict(x: Tensor) -> Tensor:
            features, outputs = features_and_outputs(vec, x, model)
            return torch.lerp(outputs, self.vote(features, keys, votes), lam)

        return predict

    def vote(self, features: Tensor, keys: Tensor, votes: Tensor, *, of_others: bool = False) -> Tensor:
        """Return h_kNN. With `of_others` the features are the keys, and no key is its own neighbor."""
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

    def best_lambda(self, keys: Tensor, outputs: Tensor, votes: Tensor) -> float:
        """Return the λ that predicts the client's own examples best, each from the other ones."""
        if len(keys) == 1:
            return 0.0
        near = self.vote(keys, keys, votes, of_others=True)

        def merit(lam: float) -> tuple[float, float]:
            mixed = torch.lerp(outputs, near, lam)
            likely = (mixed * votes).sum(1)
            right = (mixed.argmax(1) == votes.argmax(1)).sum()
            return right.item(), likely.clamp_min(torch.finfo(likely.dtype).tiny).log().sum().item()

        return max(_GRID, key=merit)


def features_and_outputs(vec: Tensor, x: Tensor, model: ClientModel) -> tuple[Tensor, Tensor]:
    """Return φ(x), and the softmax of the model's outputs."""
    parts = torch.split(x, _CHUNK)
    outputs = torch.cat([model.outputs(vec, part) for part in parts])
    return torch.cat([model.features(vec, part) for part in parts]), torch.softmax(outputs, dim=1)


@methods.register(
    "knn-per",
    paper="Marfoq et al. 2022, Personalized Federated Learning through Local Memorization",
    use="Clients that can keep their examples at hand when they answer; score it with --personalize 0.",
)
def knn_per(
    *,
    k: Annotated[int, "how many of its own examples a client asks"] = 10,
    lam: Annotated[float | None, "λ, how much they count against the model; none = each client chooses"] = None,
    scale: Annotated[float, "σ, how far off a neighbor may be and still count"] = 1.0,
    weighting: Weighting = "examples",
) -> Method:
    """FedAvg; then every client predicts from its own nearest examples and the model (--personalize)."""
    check(at_least(1, k=k), between(0, 1, lam=lam), above(0, scale=scale))
    return rounds("knn-per", weighting, personalization=Personalization(predict=Neighbors(k, lam, scale)))
