"""Fed-OGD: Mitigating Straggler Effects in Federated Learning via Orthogonal Gradient Descent (Li et al.).

    server   M_1, M_2    the latest Δw_k of every client: stragglers' (1), active clients' (2)      Sec. III-B
             b_i         = (1/|M_i|) Σ_{k ∈ M_i} Δw_k                                                Eq. 3
             w           ← w + η_g (b_1 + b_2)            at the end of each epoch                   Alg. 1, line 11
    client   g̃           = g − (⟨g, b⟩ / ‖b‖²) b          if ⟨g, b⟩ < 0, else g                      Eq. 4
             w_k         ← w_k − η_l g̃                    b: the base of the group it is not in

The paper's Δw_k is (w_k − w)/η_l, and its step has no η_l: here the step is of η_g η_l, so that η_g = 1 goes all the
way of a mean. With one η_l the two cancel. Under --lr-schedule what is cached of a client is its displacement over the
rate of its hand-out (in terms of the first), and counts at the rate of the epoch.

Errata, and what is done about them. Line 11 prints w − η_g Δw with Δw = (w_k − w)/η_l, away from the clients: a plus
is used. Eq. 4 compares a gradient, uphill, with displacements, downhill: the base is sent uphill, −b_i. Which base goes
where is said in three ways (text, Alg. 1, Sec. III-E): a client gets the mean of the group it is not in. b_1 + b_2 is
no mean over clients, one straggler weighs as much as forty active clients; the proof's first line has Σ_k Δw_k / K,
which is `weighting="clients"` (who has not come yet counts as 0). When a group is empty the step is the other's mean.

Epochs (parts.epochs) are as long as the fastest client's first visit. A client is active in an epoch if its upload came
in it, and it was handed its work at the epoch's beginning; else it is a straggler, and what is cached of it counts in
M_1 as it is. A client not seen before is taken for active at its hand-out. A lost visit leaves the cache as it was.
Running statistics have no direction: each client's latest are cached, and the global goes min(1, η_g) of the way to the
mean of the groups' means.

"Traditional OGD" of Fig. 6 is read as `projection=always`: at every step, onto the mean of the other group. The OGD
that the paper cites (Farajtabar et al. 2020) projects out the span of all stored gradients. `projection=basis` does so
with the last `stored` means of the other group, which costs as many models downwards.

`groups="announced"`: the hand-out names the group, by the speed of the previous visit. It holds from the upload of
that visit on. A client's first upload is grouped by its own speed.

`privacy` (fedogd/private.py): clients keep their last Δw_k and upload differences; the server keeps the sums of both
groups but no client's gradient. The trajectory is that of `groups="announced"`. What is protected is what is kept: a
first upload and a change of groups pass by whole, a group of one is its sum, and a server that wrote all differences
down could add them up. A change costs one model size more upwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from ...core.errors import BadInput
from ...core.local_rule import Context, LocalRule, VisitInput
from ...core.method import Method
from ...core.search_space import Range
from ...parts.checks import at_least, check
from ...parts.epochs import at_epoch_ends, epoch_aggregate
from ...parts.step import add
from ..registry import methods
from .conflicts import CountConflicts
from .private import PrivateClient, PrivateServer
from .server import CachedServer, Grouping, GroupWeighting

__all__ = ["BasisDescent", "OrthogonalDescent", "fedogd"]

WhenToProject = Literal["conflict", "always", "basis", "never"]
_RANK = 1e-6  # directions of stored gradients that are weaker than this share of the strongest are left out


@dataclass(frozen=True)
class BasisDescent(LocalRule):
    """Traditional OGD (Farajtabar et al. 2020): at every step, g without its part in the span of stored gradients B.

    g̃ = g − Bᵀ (B Bᵀ)⁺ B g
    """

    stored: int

    @property
    def required_payload(self) -> frozenset[str]:
        return frozenset({"base"})

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        rows = visit.payload.get("base")
        if rows is None:  # the other group is empty
            rows = torch.zeros_like(visit.layout.params(visit.weights)).expand(self.stored, -1)
        sizes = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        unit = rows / sizes
        gram = unit.double() @ unit.double().T
        inverse = torch.linalg.pinv(gram, hermitian=True, rtol=_RANK).to(rows.dtype)
        return visit.weights, {"rows": unit, "inverse": inverse}

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002
        rows: Tensor = context["rows"]
        out: Tensor = g - rows.T @ (context["inverse"] @ (rows @ g))
        return out


@dataclass(frozen=True)
class OrthogonalDescent(LocalRule):
    """Eq. 4 at every step, over all trained weights as one vector; "always" also where there is no conflict."""

    when: Literal["conflict", "always"] = "conflict"

    @property
    def required_payload(self) -> frozenset[str]:
        return frozenset({"base"})

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        b = visit.payload.get("base")
        if b is None:  # the other group is empty
            b = torch.zeros_like(visit.layout.params(visit.weights))
        size = torch.linalg.vector_norm(b).clamp_min(torch.finfo(b.dtype).tiny)
        return visit.weights, {"b": b / size}

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:  # noqa: ARG002
        along = torch.dot(g, context["b"])
        taken = along if self.when == "always" else along.clamp_max(0)
        return torch.addcmul(g, taken, context["b"], value=-1)


@methods.register(
    "fedogd",
    paper="Fed-OGD: Mitigating Straggler Effects in Federated Learning via Orthogonal Gradient Descent",
    use="Some tens of fast and slow clients whose data differ, and a server that can hold a model for each.",
    space={"eta": Range(0.1, 1.0)},
)
def fedogd(
    *,
    eta: Annotated[float, "η_g, the server's learning rate, over the sum of two means"] = 0.5,
    epoch: Annotated[
        float | None, "how long an epoch is (s); none: as long as the fastest client's first visit"
    ] = None,
    weighting: Annotated[GroupWeighting, "the step: b_1 + b_2 as printed, or the mean over all clients"] = "groups",
    cache: Annotated[bool, "keep every client's latest gradient; else only this epoch's uploads count"] = True,
    projection: Annotated[
        WhenToProject, "Eq. 4 on a conflict only, at every step, out of the span of past means, or not at all"
    ] = "conflict",
    stored: Annotated[int, "projection=basis: the number of past means of the other group that span it"] = 5,
    groups: Annotated[Grouping, "who is a straggler: as seen in the epoch, or as announced at the hand-out"] = "now",
    privacy: Annotated[bool, "clients upload differences, the server keeps sums only; groups are announced"] = False,
) -> Method:
    """Cache each client's latest gradient; clients project out conflicts with the other group's mean."""
    if privacy and not cache:
        raise BadInput("--method.privacy true --method.cache false: a difference needs the sum that it changes")
    check(at_least(1, stored=stored))
    if privacy and projection == "basis":
        raise BadInput("--method.privacy true --method.projection basis: the server keeps no past means")
    sends, rows = projection != "never", stored if projection == "basis" else 0
    local = _client(projection, stored)
    local = PrivateClient(local) if privacy else local
    local = CountConflicts(local) if sends and not rows else local
    server = PrivateServer(weighting, sends) if privacy else CachedServer(weighting, sends, groups, cache, stored=rows)
    return Method(
        "fedogd",
        staleness="not weighed: a straggler's latest gradient counts in every epoch until its next",
        local=local,
        aggregate=replace(
            epoch_aggregate(epoch, server), payload_keys=local.required_payload, required_extras=local.uploads
        ),
        step=add(eta),
        dispatch=at_epoch_ends(),
    )


def _client(projection: WhenToProject, stored: int) -> LocalRule:
    if projection == "never":
        return LocalRule()
    return BasisDescent(stored) if projection == "basis" else OrthogonalDescent(projection)
