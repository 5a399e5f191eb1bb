"""SAFA: a Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead (Wu et al., IEEE TC 2021).

    distribute   w_k ← W        where k is up to date (its last update came in) or deprecated (lag > τ)
                 w_k as it is   for the other clients, which continue from their own models
                 w*_k ← W       where k is deprecated
    select       C · m of the updates that arrive: clients that were not picked in the last round first,    Algorithm 1
                 and faster clients before slower ones; the other updates are undrafted
    aggregate    w*_k ← w_k     where k is picked                                         pre-aggregation cache update
                 W ← Σ_k (n_k/n) w*_k   over all m clients                                aggregation
                 w*_k ← w_k     where k is undrafted: it counts from the next round on    post-aggregation cache update

A round ends when its C · m picks are certain whatever else arrives, when T_lim has passed, or when no client trains any
more. The paper's T_lim is a number of seconds for each of its tasks. By default it is as long as the first round
took, which ends with the C · m fastest clients. A round without any update still steps from the cache. Before the first
update of the run there is no step.

Lag counts rounds since the client's last contact. In the paper all clients train all the time. With --concurrency below
--clients, a client that gets no work lags as well. w*_k begins as the first W. The paper's server knows every n_k; this
one learns it with the client's first update and averages over the known ones until then. With clients of equal size,
and once every client has sent an update, the two agree.

Differences. A visit in progress cannot be interrupted: if its client was deprecated in the meantime, the server
discards the update on arrival and hands out the current W at once. A failed visit keeps none of its progress: the
client's cache entry stays. In the authors' code every entry begins as the result of each client's first epoch on W.

Memory on the server, in model sizes: m rows, 2 for the sum (in double precision) and the entry of clients without an
update, the global and the past globals that clients are training from, and the undecided uploads of the round. The last
are of clients picked in the previous round, min(C, 1 − C) · m at most, and of the instant that ends a round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.client_table import ClientScalars, ClientTable
from ..core.errors import BadInput
from ..core.idle_clients import IdleClients
from ..core.method import Method, ServerView
from ..core.parts import Aggregate, Dispatch
from ..core.search_space import OneOf
from ..core.tickets import CONTROL, Update
from ..parts.cached import RowCache, as_update, replace_row
from ..parts.epochs import at_epoch_ends, ends
from .registry import methods

__all__ = ["safa"]

_SHORTEST = 0.001  # s, a round; a client's visit lasts thousands of shorter ones, which never end
_SLACK = 1e-9  # C · m is rounded


@dataclass(frozen=True)
class SAFAState(RowCache):
    """The cache of the server (rows: w*_k of the clients that have come; sum: Σ n_k w*_k), and the round under way."""

    sizes: ClientScalars  # n_k
    n: int  # Σ n_k over the rows
    rest: Tensor | None  # w*_k of all clients that have not come; None: every client has
    lag_start: ClientScalars  # by client, the round from which its lag counts
    rest_lag_start: int  # the same for all clients that have not come
    version: int  # the round for which deprecated entries were replaced
    last: ClientScalars  # clients picked in the last round
    undecided: ClientTable  # w_k of clients that came in this round, and are picked if others do not fill its quota
    began: float  # when the round began (s)
    limit: float | None  # T_lim (s); None: the first round is under way, and ends with its quota
    idle: bool  # no client has ever come
    back: bool  # a visit has ended in this round, with an update or without one
    picked: ClientScalars  # clients certain to be picked in this round
    again: int  # how many of them were picked in the last round, too
    examples: int  # behind the updates of this round
    steps: int  # behind the updates of this round


@dataclass(frozen=True)
class SafaRounds:
    """The aggregate part: a round ends with its quota, at T_lim, or when no client is training."""

    fraction: float
    lag: int
    limit: float | None

    def init(self, weights: Tensor) -> SAFAState:
        return SAFAState(
            **RowCache.empty(weights).dump(),
            sizes=ClientScalars(),
            n=0,
            rest=weights,
            lag_start=ClientScalars(),
            rest_lag_start=0,
            version=0,
            last=ClientScalars(),
            undecided=ClientTable(),
            began=0.0,
            limit=self.limit,
            idle=True,
            back=False,
            picked=ClientScalars(),
            again=0,
            examples=0,
            steps=0,
        )

    def quota(self, view: ServerView) -> int:
        """Return C · m."""
        return max(1, ceil(self.fraction * view.n_clients - _SLACK))

    def apply(self, update: Update | None, state: SAFAState, view: ServerView) -> tuple[None, SAFAState]:
        state = replace(self.distribute(state, view), back=True)
        if update is None:
            return None, state
        k = update.ticket.client
        deprecated, certain = update.staleness > self.lag, self.is_certain(k, state, view)
        if k not in state.rows:
            state.sizes[k] = update.n_examples
            if deprecated or not certain:  # it is known from now on, and counts as before
                state = _enter(state, k, state.rest, view)
        if deprecated:
            state.lag_start[k] = view.version  # it is handed the global at once
            return None, replace(state, idle=False)
        state.lag_start[k] = view.version + 1
        examples, steps = state.examples + update.n_examples, state.steps + update.n_steps
        state = replace(state, idle=False, examples=examples, steps=steps)
        if not certain:
            state.undecided.put(k, _result(update, view))
            return None, state
        state.picked[k] = True
        state = replace(state, again=state.again + (k in state.last))
        return None, _enter(state, k, _result(update, view), view)

    def is_certain(self, k: int, state: SAFAState, view: ServerView) -> bool:
        """Return whether k is picked whichever clients still arrive: those not picked in the last round come first."""
        quota = self.quota(view)
        if k not in state.last:
            return len(state.picked) < quota
        return state.again < quota - (view.n_clients - len(state.last))

    def on_instant_end(self, state: SAFAState, view: ServerView) -> tuple[Update | None, SAFAState]:
        if state.idle or not self.is_over(state, view):
            return None, state
        state = self.distribute(state, view)
        undecided, waiting = state.undecided, list(state.undecided)
        free = max(0, self.quota(view) - len(state.picked))
        for k in waiting[:free]:
            state.picked[k] = True
            state = _enter(state, k, undecided[k], view)  # pre-aggregation cache update
        move = as_update(_mean(state, view).sub_(view.weights), view, state.examples, state.steps)
        for k in waiting[free:]:
            state = _enter(state, k, undecided[k], view)  # post-aggregation cache update
        for k in waiting:
            undecided.pop(k)
        lasted = view.time - max(state.began, view.busy_since)
        return move, replace(
            state,
            last=state.picked,
            began=view.time,
            limit=lasted if state.limit is None else state.limit,
            back=False,
            picked=ClientScalars(),
            again=0,
            examples=0,
            steps=0,
        )

    def is_over(self, state: SAFAState, view: ServerView) -> bool:
        if not view.in_flight:
            return state.back
        return len(state.picked) >= self.quota(view) or view.time >= self.next_wakeup(state, view)

    def next_wakeup(self, state: SAFAState, view: ServerView) -> float:
        return inf if state.idle else ends(state.began, state.limit, view)

    def distribute(self, state: SAFAState, view: ServerView) -> SAFAState:
        """Return the state with the global in the place of deprecated entries; once a round."""
        if state.version == view.version:
            return state
        for k in list(state.rows):
            if view.version - state.lag_start[k] > self.lag:
                state.lag_start[k] = view.version
                state = replace_row(state, k, view.weights, mass=state.sizes[k])
        if state.rest is not None and view.version - state.rest_lag_start > self.lag:
            state = replace(state, rest=view.weights, rest_lag_start=view.version)
        return replace(state, version=view.version)


def _enter(state: SAFAState, k: int, row: Tensor | None, view: ServerView) -> SAFAState:
    """Return the state with w*_k ← row, where k may be a client that has not come before."""
    assert row is not None, "clients that have not come share an entry"
    known = k in state.rows
    state = replace_row(state, k, row, mass=state.sizes[k])
    if known:
        return state
    rest = None if len(state.rows) == view.n_clients else state.rest
    return replace(state, n=state.n + state.sizes[k], rest=rest)


def _result(update: Update, view: ServerView) -> Tensor:
    """Return w_k. A weight that the update was given scales the displacement, but no running statistics."""
    if update.weight == 1:
        return update.local
    n = view.layout.n_params
    row = torch.add(update.ticket.sent, update.delta, alpha=update.weight)
    return torch.cat([row[:n], update.local[n:]]) if view.layout.stats else row


def _mean(state: SAFAState, view: ServerView) -> Tensor:
    """Return Σ (n_k/n) w*_k; a client that has not come yet has the mean size of those that have."""
    known, n = len(state.rows), state.n
    others = n / known * (view.n_clients - known)
    mean = state.sum / (n + others)
    return mean.add_(state.rest, alpha=others / (n + others)) if others and state.rest is not None else mean


def lag_tolerant(lag: int) -> Dispatch:
    """Hand the global to all idle clients as a round begins, and to clients that came too late to count at once."""
    rounds = at_epoch_ends()

    def init(weights: Tensor) -> dict[str, Any]:
        return {"late": [], "rounds": rounds.init(weights)}

    def observe(update: Update, state: dict[str, Any], _: ServerView) -> dict[str, Any]:
        return {**state, "late": [*state["late"], update.ticket.client]} if update.staleness > lag else state

    def apply(roster: IdleClients, state: dict[str, Any], view: ServerView) -> tuple[list[int], dict[str, Any]]:
        chosen, after = rounds(roster, state["rounds"], view)
        if not chosen:
            chosen = sorted(k for k in state["late"] if k in roster)
            for k in chosen:
                roster.remove(k)
        return chosen, {"late": [], "rounds": after}

    return Dispatch(apply, init, observe=observe)


@methods.register(
    "safa",
    paper="Wu et al. 2021, SAFA: a Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead",
    use="Rounds that do not wait for stragglers, with a cached model of every client in each mean.",
    space={"fraction": OneOf(0.1, 0.3, 0.5, 0.7, 1.0)},
)
def safa(
    *,
    fraction: Annotated[float, "C, the share of all clients that a round picks"] = 0.5,
    lag: Annotated[int, "τ, the rounds that a client may lag behind before its work is thrown away"] = 5,
    limit: Annotated[float | None, "T_lim (s), the longest that a round lasts; none: as long as the first took"] = None,
) -> Method:
    """Semi-asynchronous rounds: the fastest are picked, a cached model of every client is averaged."""
    problems = []
    if not 0 < fraction <= 1:
        problems.append(f"--method.fraction {fraction}: must be above 0 and at most 1")
    if lag < 0:
        problems.append(f"--method.lag {lag}: must be 0 or more")
    if limit is not None and not limit >= _SHORTEST:
        problems.append(f"--method.limit {limit}: must be {_SHORTEST} or more, or none for as long as the first round")
    if problems:
        raise BadInput(problems)
    rounds = SafaRounds(fraction, lag, limit)
    return Method(
        "safa",
        staleness="rounds since hand-out; more than τ: thrown away",
        aggregate=Aggregate(
            rounds.apply,
            rounds.init,
            on_instant_end=rounds.on_instant_end,
            next_wakeup=rounds.next_wakeup,
            dropped_extras=frozenset({CONTROL}),
        ),
        dispatch=lag_tolerant(lag),
    )
