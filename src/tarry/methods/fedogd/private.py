"""Fed-OGD with `privacy`: clients upload differences, and the server keeps sums alone (end of III-B).

The server keeps the sums of both groups and which group each client is counted in, but no client's gradient. Groups are
announced. A client keeps its last Δw_k and statistics; it uploads

    the new less the old           into the sum of its group           if its group is the same
    the new, and minus the old     into the new group's and out of     if it is announced that it changes groups
                                   the old group's sum

and its first upload is whole; the old is brought to the rate of the visit. The trajectory is that of
`groups="announced"`. What is protected is what is kept: a first upload and a change of groups pass by whole, a group of
one is its sum, and a server that wrote all differences down could add them up. A change costs one model size more
upwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...core.client_table import ClientScalars
from ...core.local_rule import ClientModel, Context, LocalRule, VisitInput, VisitOutput
from ...core.method import ServerView
from ...core.state_tree import StateRecord
from ...core.task import Examples
from ...core.tickets import DIFFERENCE, Update
from ...parts.epochs import per_rate
from .server import ACTIVE, STRAGGLER, GroupServer

__all__ = ["PrivateClient", "PrivateServer"]

_UPLOADS = frozenset({DIFFERENCE})


@dataclass(frozen=True)
class PrivateClient(LocalRule):
    """A client that trains by another rule, keeps its last entry (Δw_k and statistics) and uploads differences."""

    rule: LocalRule

    @property
    def required_payload(self) -> frozenset[str]:
        return self.rule.required_payload

    @property
    def uploads(self) -> frozenset[str]:
        return _UPLOADS

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        start, context = self.rule.begin(visit)
        n, memory = visit.layout.n_params, visit.memory
        origin = torch.cat([start[:n], torch.zeros_like(start[n:])])
        before = {"old": memory.get("entry"), "old_rate": memory.get("rate"), "changes": "changes" in visit.payload}
        return start, {**context, "origin": origin, "n_params": n, **before}

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:
        return self.rule.init(w, context, model), model.optimizer

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        w, own, loss = self.rule.step(w, batch, context, state[0], model)
        return w, (own, state[1]), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        own, optimizer = state
        new, rate = w - context["origin"], torch.tensor(optimizer.lr, dtype=torch.float64)
        out = self.rule.finish(w, context, own)._replace(delta=new, memory={"entry": new, "rate": rate})
        old, n = context["old"], context["n_params"]
        if old is None:
            return out
        old = torch.cat([old[:n] * (rate / context["old_rate"]), old[n:]])
        return out._replace(extras={"leaves": -old}) if context["changes"] else out._replace(delta=new - old)


@dataclass(frozen=True)
class GroupSums(StateRecord):
    """The state of the server that keeps sums alone."""

    sums: dict[int, Tensor]  # Σ Δw_k by group, per rate, in double precision
    pace: ClientScalars  # ACTIVE or STRAGGLER, by the latest upload
    group: ClientScalars  # in whose sum a client's latest upload is
    bases: dict[int, Tensor]  # −b_i by group


@dataclass(frozen=True)
class PrivateServer(GroupServer):
    """The sums of M_1 and M_2. In double precision, what is taken out again leaves nothing behind."""

    @property
    def offers(self) -> bool:
        return True  # a change of groups is announced

    def init(self, weights: Tensor) -> GroupSums:
        zero = torch.zeros_like(weights, dtype=torch.float64)
        return GroupSums({STRAGGLER: zero, ACTIVE: zero}, ClientScalars(), ClientScalars(), {})

    def on_update(self, update: Update, late: bool, state: GroupSums, view: ServerView) -> GroupSums:
        k, pace = update.ticket.client, STRAGGLER if late else ACTIVE
        before, group = state.group.get(k), state.pace.get(k, pace)  # as announced at the hand-out
        state.group[k] = group
        sums = {**state.sums, group: state.sums[group] + per_rate(update.delta, update, view)}
        if before not in (None, group):
            shared, leaves = before in state.group.values(), per_rate(update.extras["leaves"], update, view)
            sums[before] = sums[before] + leaves if shared else torch.zeros_like(sums[before])
        state.pace[k] = pace
        return replace(state, sums=sums)

    def end_epoch(self, state: GroupSums, view: ServerView) -> tuple[Tensor | None, GroupSums]:
        members = list(state.group.values())
        sizes = {i: members.count(i) for i in (STRAGGLER, ACTIVE) if i in members}
        b = {i: (state.sums[i] / size).to(view.weights.dtype) for i, size in sizes.items()}  # Eq. 3
        return self.move(b, sizes, view), replace(state, bases=self.uphill(b, state.bases, view))

    def payload(self, client: int, state: GroupSums) -> dict[str, Tensor]:
        group = state.pace.get(client, ACTIVE)
        payload = self.base_for(group, state.bases)
        if state.group.get(client, group) != group:
            payload["changes"] = torch.tensor(True)
        return payload
