"""SAFA: a Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead (Wu et al., IEEE TC 2021).

    distribute   w_k ← W        who is up to date (its last training came in) or deprecated (lag > τ)
                 others go on   from the W they have
                 w*_k ← W       where k is deprecated
    select       of those who come, C · m are picked: who was not picked in the last round first,        Algorithm 1
                 and the faster before the slower; the rest is undrafted
    aggregate    w*_k ← w_k     where k is picked                                         pre-aggregation cache update
                 W ← Σ_k (n_k/n) w*_k   over all m clients                                aggregation
                 w*_k ← w_k     where k is undrafted: it counts from the next round on    post-aggregation cache update

A round is over when the C · m that it picks are certain, whoever else may come; when T_lim has passed; or when nobody
is training any more. The paper's T_lim is a number of seconds for each of its tasks; left out, it is as long as the
first round took, which ends with the C · m fastest. A round that nobody came back from is a step all the same, by what
is cached; before anybody has come at all there is none.

Lag counts rounds, from the one in which a client was last heard of. All of the paper's clients train all the time: with
--concurrency below --clients, who is not handed work lags as well. w*_k begins as the first W. The paper's server knows
every n_k; this one learns it with the client's first update, and takes the mean of those it knows until then. With
clients of one size, and once all have come, that is the same.

Where this differs. A training under way cannot be interrupted: the update of a client that was deprecated meanwhile is
thrown away when it comes, and the client handed the W of that moment at once. A training that crashes keeps nothing of
its progress: what is cached of the client stays. In the authors' code all entries begin as what a first epoch of every
client made of W.

On the server, in model sizes: m rows, 2 (the sum, in double precision) and the entry of those who have not come yet,
beside the global, the past ones that clients are training from, and the round's uploads that are not decided yet. These
are of clients picked in the last round, min(C, 1 − C) · m at most, and of the instant that ends a round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.client_table import Marks, Table
from ..core.errors import BadInput
from ..core.idle_clients import Roster
from ..core.method import Method, Now
from ..core.parts import Aggregate, Dispatch
from ..core.tickets import Update
from ..parts.cached import RowCache, as_update, replace_row
from ..parts.epochs import at_epoch_ends, ends
from ..parts.manifold import CONTROL
from .registry import methods

__all__ = ["safa"]

_SLACK = 1e-9  # C · m is rounded


@dataclass(frozen=True)
class SAFAState(RowCache):
    """The cache of the server (rows: w*_k of the clients that have come; sum: Σ n_k w*_k), and the round under way."""

    sizes: Marks  # n_k
    n: int  # Σ n_k over the rows
    rest: Tensor | None  # w*_k of all clients that have not come; None: every client has
    heard: Marks  # by client, the round from which its lag counts
    rest_heard: int  # the same for all clients that have not come
    version: int  # the round for which deprecated entries were replaced
    last: Marks  # clients picked in the last round
    undecided: Table  # w_k of clients that came in this round, and are picked if its quota is not filled by others
    began: float  # when the round began (s)
    limit: float | None  # T_lim (s); None: the first round is under way, and ends with its quota
    idle: bool  # no client has ever come
    back: bool  # a visit has ended in this round, with an update or without one
    picked: Marks  # clients certain to be picked in this round
    again: int  # how many of them were picked in the last round, too
    examples: int  # behind the updates of this round
    steps: int  # behind the updates of this round


@dataclass(frozen=True)
class Rounds:
    """The aggregate part: a round ends with its quota, at T_lim, or when no client is training."""

    fraction: float
    lag: int
    limit: float | None

    def init(self, weights: Tensor) -> SAFAState:
        return SAFAState(
            **RowCache.empty(weights).dump(),
            sizes=Marks(),
            n=0,
            rest=weights,
            heard=Marks(),
            rest_heard=0,
            version=0,
            last=Marks(),
            undecided=Table(),
            began=0.0,
            limit=self.limit,
            idle=True,
            back=False,
            picked=Marks(),
            again=0,
            examples=0,
            steps=0,
        )

    def quota(self, now: Now) -> int:
        """Return C · m."""
        return max(1, ceil(self.fraction * now.n_clients - _SLACK))

    def apply(self, update: Update | None, state: SAFAState, now: Now) -> tuple[None, SAFAState]:
        state = replace(self.distribute(state, now), back=True)
        if update is None:
            return None, state
        k = update.ticket.client
        deprecated, certain = update.staleness > self.lag, self.is_certain(k, state, now)
        if k not in state.rows:
            state.sizes[k] = update.n_examples
            if deprecated or not certain:  # it is known from now on, and counts as before
                state = _enter(state, k, state.rest, now)
        if deprecated:
            state.heard[k] = now.version  # it is handed the global at once
            return None, replace(state, idle=False)
        state.heard[k] = now.version + 1
        examples, steps = state.examples + update.n_examples, state.steps + update.n_steps
        state = replace(state, idle=False, examples=examples, steps=steps)
        if not certain:
            state.undecided.put(k, _result(update, now))
            return None, state
        state.picked[k] = True
        state = replace(state, again=state.again + (k in state.last))
        return None, _enter(state, k, _result(update, now), now)

    def is_certain(self, k: int, state: SAFAState, now: Now) -> bool:
        """Whether k is picked whichever clients still come: those not picked in the last round go before the others."""
        quota = self.quota(now)
        if k not in state.last:
            return len(state.picked) < quota
        return state.again < quota - (now.n_clients - len(state.last))

    def on_instant_end(self, state: SAFAState, now: Now) -> tuple[Update | None, SAFAState]:
        if state.idle or not self.is_over(state, now):
            return None, state
        state = self.distribute(state, now)
        undecided, waiting = state.undecided, list(state.undecided)
        free = max(0, self.quota(now) - len(state.picked))
        for k in waiting[:free]:
            state.picked[k] = True
            state = _enter(state, k, undecided[k], now)  # pre-aggregation cache update
        move = as_update(_mean(state, now).sub_(now.weights), now, state.examples, state.steps)
        for k in waiting[free:]:
            state = _enter(state, k, undecided[k], now)  # post-aggregation cache update
        for k in waiting:
            undecided.pop(k)
        lasted = now.time - max(state.began, now.since)
        return move, replace(
            state,
            last=state.picked,
            began=now.time,
            limit=lasted if state.limit is None else state.limit,
            back=False,
            picked=Marks(),
            again=0,
            examples=0,
            steps=0,
        )

    def is_over(self, state: SAFAState, now: Now) -> bool:
        if not now.in_flight:
            return state.back
        return len(state.picked) >= self.quota(now) or now.time >= self.next_wakeup(state, now)

    def next_wakeup(self, state: SAFAState, now: Now) -> float:
        return inf if state.idle else ends(state.began, state.limit, now)

    def distribute(self, state: SAFAState, now: Now) -> SAFAState:
        """Return the state with the global in the place of deprecated entries; once a round."""
        if state.version == now.version:
            return state
        for k in list(state.rows):
            if now.version - state.heard[k] > self.lag:
                state.heard[k] = now.version
                state = replace_row(state, k, now.weights, mass=state.sizes[k])
        if state.rest is not None and now.version - state.rest_heard > self.lag:
            state = replace(state, rest=now.weights, rest_heard=now.version)
        return replace(state, version=now.version)


def _enter(state: SAFAState, k: int, row: Tensor | None, now: Now) -> SAFAState:
    """Return the state with w*_k ← row, where k may be a client that has not come before."""
    assert row is not None, "clients that have not come share an entry"
    known = k in state.rows
    state = replace_row(state, k, row, mass=state.sizes[k])
    if known:
        return state
    rest = None if len(state.rows) == now.n_clients else state.rest
    return replace(state, n=state.n + state.sizes[k], rest=rest)


def _result(update: Update, now: Now) -> Tensor:
    """Return w_k. A weight that the update was given scales the displacement, but no running statistics."""
    if update.weight == 1:
        return update.local
    n = now.layout.n_params
    row = torch.add(update.ticket.sent, update.delta, alpha=update.weight)
    return torch.cat([row[:n], update.local[n:]]) if now.layout.stats else row


def _mean(state: SAFAState, now: Now) -> Tensor:
    """Return Σ (n_k/n) w*_k; a client that has not come yet has the mean size of those that have."""
    known, n = len(state.rows), state.n
    others = n / known * (now.n_clients - known)
    mean = state.sum / (n + others)
    return mean.add_(state.rest, alpha=others / (n + others)) if others and state.rest is not None else mean


def lag_tolerant(lag: int) -> Dispatch:
    """Hand the global to all idle clients as a round begins, and to clients that came too late to count at once."""
    rounds = at_epoch_ends()

    def init(weights: Tensor) -> dict[str, Any]:
        return {"late": [], "rounds": rounds.init(weights)}

    def observe(update: Update, state: dict[str, Any], _: Now) -> dict[str, Any]:
        return {**state, "late": [*state["late"], update.ticket.client]} if update.staleness > lag else state

    def apply(roster: Roster, state: dict[str, Any], now: Now) -> tuple[list[int], dict[str, Any]]:
        chosen, after = rounds(roster, state["rounds"], now)
        if not chosen:
            chosen = sorted(k for k in state["late"] if k in roster)
            for k in chosen:
                roster.remove(k)
        return chosen, {"late": [], "rounds": after}

    return Dispatch(apply, init, observe=observe)


@methods.register(
    "safa",
    paper="Wu et al. 2021, SAFA: a Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead",
    use="Rounds that do not wait for stragglers, with an old model of everybody in every mean.",
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
    if limit is not None and not limit > 0:
        problems.append(f"--method.limit {limit}: must be above 0, or none for as long as the first round took")
    if problems:
        raise BadInput(problems)
    rounds = Rounds(fraction, lag, limit)
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
