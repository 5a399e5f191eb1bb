"""Fed-OGD's server: the dictionary M, the base of each group, and the step at the end of an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ...core.client_table import ClientScalars, ClientTable
from ...core.method import ServerView
from ...core.state_tree import StateRecord
from ...core.tickets import Update
from ...parts.epochs import EpochServer, at_rate, per_rate, storable

__all__ = ["ACTIVE", "STRAGGLER", "CachedServer", "GroupServer", "Grouping", "GroupWeighting"]

GroupWeighting = Literal["groups", "clients"]
Grouping = Literal["now", "announced"]
STRAGGLER, ACTIVE = 1, 2  # of M_1 and M_2; the other group of i is 3 − i


@dataclass(frozen=True)
class GroupServer(EpochServer):
    """Base of both servers: compute the step and the bases from the groups' means, and send each client its base."""

    steps_at_rate: ClassVar[bool] = True
    weighting: GroupWeighting
    sends: bool  # whether bases are sent
    stored: int = field(default=0, kw_only=True)  # past means of a group that are sent with its base; 0: the base alone

    @property
    def offers(self) -> bool:
        return self.sends

    def move(self, means: Mapping[int, Tensor], sizes: Mapping[int, int], view: ServerView) -> Tensor | None:
        """Return b_1 + b_2, or Σ_k Δw_k / K (line 11); of statistics the mean of the means, or of the clients."""
        if not means:
            return None
        by_group = self.weighting == "groups"
        move, n, seen = torch.zeros_like(view.weights), view.layout.n_params, sum(sizes.values())
        for i, mean in means.items():
            move[:n].add_(mean[:n], alpha=1.0 if by_group else sizes[i] / view.n_clients)
            move[n:].add_(mean[n:], alpha=1 / len(means) if by_group else sizes[i] / seen)
        return at_rate(move, view)

    def uphill(self, means: Mapping[int, Tensor], before: Mapping[int, Tensor], view: ServerView) -> dict[int, Tensor]:
        """Return −b_i, the bases as they are sent: one tensor for all clients of a group; with past ones, as rows."""
        if not self.sends:
            return {}
        bases = {i: -view.layout.params(mean) for i, mean in means.items()}
        if not self.stored:
            return bases
        return {**before, **{i: self._with_past(base, before.get(i)) for i, base in bases.items()}}

    def _with_past(self, base: Tensor, before: Tensor | None) -> Tensor:
        rows = base.new_zeros(self.stored, len(base))
        rows[0] = base
        if before is not None:
            rows[1:] = before[:-1]
        return rows

    def base_for(self, group: int, bases: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """Return the payload of a client of this group: the other group's base, where that has a member."""
        base = bases.get(3 - group)
        return {} if base is None else {"base": base}


@dataclass(frozen=True)
class Caches(StateRecord):
    """The state of the server that keeps every client's gradient."""

    M: ClientTable  # the latest Δw_k of every client, per rate
    pace: ClientScalars  # ACTIVE or STRAGGLER, by the latest upload (of this epoch, where groups are counted "now")
    group: ClientScalars  # as counted in the latest step
    bases: dict[int, Tensor]  # −b_i by group, with `stored` the last ones as rows


@dataclass(frozen=True)
class CachedServer(GroupServer):
    """The dictionary M. With groups "now", a client without an upload in an epoch is a straggler in it.

    Without cache, M holds the uploads of this epoch alone.
    """

    groups: Grouping
    cache: bool

    def init(self, _: Tensor) -> Caches:
        return Caches(ClientTable(), ClientScalars(), ClientScalars(), {})

    def on_update(self, update: Update, late: bool, state: Caches, view: ServerView) -> Caches:
        k, pace = update.ticket.client, STRAGGLER if late else ACTIVE
        if self.groups == "announced":
            state.group[k] = state.pace.get(k, pace)
        state.M.put(k, per_rate(storable(update, view), update, view))
        state.pace[k] = pace
        return state

    def end_epoch(self, state: Caches, view: ServerView) -> tuple[Tensor | None, Caches]:
        M, pace, group = state.M, state.pace, state.group
        if self.groups == "now":
            group, pace = ClientScalars({**dict.fromkeys(group, STRAGGLER), **pace}), ClientScalars()
        members = {i: [k for k in M if group[k] == i] for i in (STRAGGLER, ACTIVE)}
        b = {i: _mean(M, clients) for i, clients in members.items() if clients}  # Eq. 3
        move = self.move(b, {i: len(members[i]) for i in b}, view)  # line 11
        if not self.cache:
            for k in list(M):
                M.pop(k)
        return move, replace(state, pace=pace, group=group, bases=self.uphill(b, state.bases, view))

    def payload(self, client: int, state: Caches) -> dict[str, Tensor]:
        group = state.group if self.groups == "now" else state.pace
        return self.base_for(group.get(client, ACTIVE), state.bases)


def _mean(M: ClientTable, clients: Sequence[int]) -> Tensor:
    total = M[clients[0]].clone()
    for k in clients[1:]:
        total.add_(M[k])
    return total.div_(len(clients))
