"""Fed-OGD: Mitigating Straggler Effects in Federated Learning via Orthogonal Gradient Descent (Li et al.).

    server   M_1, M_2    the latest Δw_k of every client: stragglers' (1), active clients' (2)      Sec. III-B
             b_i         = (1/|M_i|) Σ_{k ∈ M_i} Δw_k                                                Eq. 3
             w           ← w + η_g (b_1 + b_2)            at the end of each epoch                   Alg. 1, line 11
    client   g̃           = g − (⟨g, b⟩ / ‖b‖²) b          if ⟨g, b⟩ < 0, else g                      Eq. 4
             w_k         ← w_k − η_l g̃                    b: the base of the group it is not in

The paper's Δw_k is (w_k − w)/η_l, and its step has no η_l: here the step is of η_g η_l, so that η_g = 1 goes all the
way of a mean. With one η_l the two cancel. Under --lr-decay what is cached of a client is its displacement over the
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

`groups="announced"`: the group is told at the hand-out, by the pace of the visit before, and holds from that visit's
upload on; a client's first upload counts by its own pace.

`privacy`: the server keeps the sums of both groups and which group each client is counted in, but nobody's gradient
(end of III-B). Groups are announced. A client keeps its last Δw_k and statistics; it uploads

    the new less the old           into the sum of its group           if its group is the same
    the new, and minus the old     into the new group's and out of     if it was told that it changes groups
                                   the old group's sum

and its first upload is whole; the old is brought to the rate of the visit. The trajectory is that of
`groups="announced"`. What is protected is what is kept: a first upload and a change of groups pass by whole, a group of
one is its sum, and a server that wrote all differences down could add them up. A change costs one model size more
upwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.client_table import Marks, Table
from ..core.errors import BadInput
from ..core.local_rule import Brief, Context, Functions, LocalRule, Outcome
from ..core.method import Method, Now
from ..core.task import Examples
from ..core.tickets import Offer, Update
from ..parts.epochs import Book, at_epoch_ends, at_rate, by_epochs, entry, per_rate
from ..parts.step import add
from .registry import methods

__all__ = ["fedogd"]

Projection = Literal["conflict", "always", "never"]
Weighting = Literal["groups", "clients"]
Groups = Literal["now", "announced"]
BASE, DIFFERENCE = frozenset({"base"}), frozenset({"difference"})
STRAGGLER, ACTIVE = 1, 2  # of M_1 and M_2; the other group of i is 3 − i


@dataclass(frozen=True)
class Orthogonal(LocalRule):
    """Eq. 4 at every step, over all trained weights as one vector. `always` is traditional OGD."""

    projection: Projection

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self.projection == "never" else BASE

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        b = brief.payload.get("base")
        if b is None:  # nobody is in the other group yet
            b = torch.zeros_like(brief.layout.params(brief.weights))
        size = torch.linalg.vector_norm(b).clamp_min(torch.finfo(b.dtype).tiny)
        return brief.weights, {"along": b / size, "n_steps": brief.n_steps}

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:  # noqa: ARG002
        return f.init(w), torch.zeros_like(w[0])

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        inner, conflicts = state
        g, loss = f.grad(w, batch)
        if self.projection != "never":
            component = torch.dot(g, context["along"])
            taken = component if self.projection == "always" else component.clamp_max(0)
            g = torch.addcmul(g, taken, context["along"], value=-1)
            if self.watch:
                conflicts = conflicts + (component < 0)
        w, inner = f.descend(w, g, inner)
        return w, (inner, conflicts), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:  # noqa: ARG002
        watched = self.watch and self.projection != "never"
        return Outcome(notes={"conflict": state[1] / context["n_steps"]}) if watched else Outcome()


@dataclass(frozen=True)
class Private(Orthogonal):
    """The client keeps its last entry (displacement and statistics) and uploads differences."""

    @property
    def gives(self) -> frozenset[str]:
        return DIFFERENCE

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        start, context = super().begin(brief)
        n, memory = brief.layout.n_params, brief.memory
        origin = torch.cat([start[:n], torch.zeros_like(start[n:])])
        before = {"old": memory.get("entry"), "old_rate": memory.get("rate"), "changes": "changes" in brief.payload}
        return start, {**context, "origin": origin, "n_params": n, **before}

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:
        return *super().init(w, context, f), f.optimiser

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        w, mine, loss = super().step(w, batch, context, state[:2], f)
        return w, (*mine, state[2]), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:
        new, rate = w - context["origin"], torch.tensor(state[2].lr, dtype=torch.float64)
        out = super().finish(w, context, state)._replace(delta=new, memory={"entry": new, "rate": rate})
        old, n = context["old"], context["n_params"]
        if old is None:
            return out
        old = torch.cat([old[:n] * (rate / context["old_rate"]), old[n:]])
        return out._replace(extras={"leaves": -old}) if context["changes"] else out._replace(delta=new - old)


@dataclass(frozen=True)
class Bases:
    """What both servers have in common: from the groups' means to the step and the bases, and who gets which."""

    weighting: Weighting
    sends: bool

    def move(self, means: Mapping[int, Tensor], sizes: Mapping[int, int], now: Now) -> Tensor | None:
        """b_1 + b_2, or Σ_k Δw_k / K; of statistics the mean of the means, or of the clients."""
        if not means:
            return None
        by_group = self.weighting == "groups"
        move, n, seen = torch.zeros_like(now.weights), now.layout.n_params, sum(sizes.values())
        for i, mean in means.items():
            move[:n].add_(mean[:n], alpha=1.0 if by_group else sizes[i] / now.n_clients)
            move[n:].add_(mean[n:], alpha=1 / len(means) if by_group else sizes[i] / seen)
        return at_rate(move, now)

    def uphill(self, means: Mapping[int, Tensor], now: Now) -> dict[int, Tensor]:
        """The bases as they are sent: one tensor a group, whoever gets it."""
        return {i: -now.layout.params(mean) for i, mean in means.items()} if self.sends else {}

    def other(self, group: int, book: Book) -> dict[str, Tensor]:
        base = book["bases"].get(3 - group)
        return {} if base is None else {"base": base}


@dataclass(frozen=True)
class Cached(Bases):
    """The dictionary M. `now`: who did not come in an epoch is a straggler in it. Without cache, M is this epoch's."""

    groups: Groups
    cache: bool

    def begin(self, _: Tensor) -> Book:
        return {"M": Table(), "pace": Marks(), "group": Marks(), "bases": {}}

    def take(self, update: Update, book: Book, late: bool, now: Now) -> Book:
        k, pace = update.ticket.client, STRAGGLER if late else ACTIVE
        if self.groups == "announced":
            book["group"][k] = book["pace"].get(k, pace)
        book["M"].put(k, per_rate(entry(update, now), update, now))
        book["pace"][k] = pace
        return book

    def close(self, book: Book, now: Now) -> tuple[Tensor | None, Book]:
        M, pace, group = book["M"], book["pace"], book["group"]
        if self.groups == "now":
            group, pace = Marks({**dict.fromkeys(group, STRAGGLER), **pace}), Marks()
        members = {i: [k for k in M if group[k] == i] for i in (STRAGGLER, ACTIVE)}
        means = {i: _mean(M, clients) for i, clients in members.items() if clients}
        move = self.move(means, {i: len(members[i]) for i in means}, now)
        if not self.cache:
            for k in list(M):
                M.pop(k)
        return move, {"M": M, "pace": pace, "group": group, "bases": self.uphill(means, now)}

    def offer(self, client: int, book: Book, _: Now) -> Offer:
        told = book["group"] if self.groups == "now" else book["pace"]
        return Offer(self.other(told.get(client, ACTIVE), book))


@dataclass(frozen=True)
class Summed(Bases):
    """The sums of M_1 and M_2 in double precision, so that what is taken out again leaves nothing behind."""

    def begin(self, weights: Tensor) -> Book:
        zero = torch.zeros_like(weights, dtype=torch.float64)
        return {"sums": {STRAGGLER: zero, ACTIVE: zero}, "pace": Marks(), "group": Marks(), "bases": {}}

    def take(self, update: Update, book: Book, late: bool, now: Now) -> Book:
        k, pace, sums = update.ticket.client, STRAGGLER if late else ACTIVE, book["sums"]
        group, before, told = book["group"], book["group"].get(k), book["pace"].get(k, pace)
        group[k] = told
        sums = {**sums, told: sums[told] + per_rate(update.delta, update, now)}
        if before not in (None, told):
            shared, leaves = before in group.values(), per_rate(update.extras["leaves"], update, now)
            sums[before] = sums[before] + leaves if shared else torch.zeros_like(sums[before])
        book["pace"][k] = pace
        return {**book, "sums": sums}

    def close(self, book: Book, now: Now) -> tuple[Tensor | None, Book]:
        members = list(book["group"].values())
        sizes = {i: members.count(i) for i in (STRAGGLER, ACTIVE) if i in members}
        means = {i: (book["sums"][i] / size).to(now.weights.dtype) for i, size in sizes.items()}
        return self.move(means, sizes, now), {**book, "bases": self.uphill(means, now)}

    def offer(self, client: int, book: Book, _: Now) -> Offer:
        told = book["pace"].get(client, ACTIVE)
        payload = self.other(told, book)
        if book["group"].get(client, told) != told:
            payload["changes"] = torch.tensor(True)
        return Offer(payload)


def _mean(M: Table, clients: Sequence[int]) -> Tensor:
    total = M[clients[0]].clone()
    for k in clients[1:]:
        total.add_(M[k])
    return total.div_(len(clients))


@methods.register(
    "fedogd",
    paper="Fed-OGD: Mitigating Straggler Effects in Federated Learning via Orthogonal Gradient Descent",
    use="Some tens of fast and slow clients whose data differ, and a server that can hold a model for each.",
)
def fedogd(
    *,
    eta: Annotated[float, "η_g, the server's learning rate, over the sum of two means"] = 0.5,
    epoch: Annotated[
        float | None, "how long an epoch is (s); none: as long as the fastest client's first visit"
    ] = None,
    weighting: Annotated[Weighting, "the step: b_1 + b_2 as printed, or the mean over all clients"] = "groups",
    cache: Annotated[bool, "keep every client's latest gradient; else only this epoch's uploads count"] = True,
    projection: Annotated[Projection, "Eq. 4 on a conflict only, at every step (traditional OGD), or not at all"] = (
        "conflict"
    ),
    groups: Annotated[Groups, "who is a straggler: as seen in the epoch, or as told at the hand-out"] = "now",
    privacy: Annotated[bool, "clients upload differences, the server keeps sums only; groups are announced"] = False,
) -> Method:
    """Cache everybody's latest gradient; clients keep theirs from going against the other group's mean."""
    if privacy and not cache:
        raise BadInput("--method.privacy true --method.cache false: a difference needs the sum that it changes")
    sends = projection != "never"
    book = Summed(weighting, sends) if privacy else Cached(weighting, sends, groups, cache)
    local = Private(projection) if privacy else Orthogonal(projection) if sends else LocalRule()
    offer = book.offer if sends or privacy else None
    aggregate = by_epochs(epoch, begin=book.begin, take=book.take, close=book.close, offer=offer)
    return Method(
        "fedogd",
        staleness="not weighed: a straggler's latest gradient counts in every epoch until its next",
        local=local,
        aggregate=replace(aggregate, payload_keys=local.needs, required_extras=local.gives),
        step=add(eta),
        dispatch=at_epoch_ends(),
    )
