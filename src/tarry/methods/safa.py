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

from dataclasses import dataclass
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

State = dict[str, Any]
_SLACK = 1e-9  # C · m is rounded


@dataclass(frozen=True)
class Rounds:
    """The aggregate part: rows are the w*_k of clients that have come, `rest` is that of all others."""

    fraction: float
    lag: int
    limit: float | None

    def init(self, weights: Tensor) -> State:
        return {
            **RowCache.empty(weights).dump(),
            "sizes": Marks(),
            "n": 0,  # of the rows
            "rest": weights,
            "heard": Marks(),  # the round from which a client's lag counts
            "rest_heard": 0,
            "version": 0,
            "last": Marks(),  # picked in the last round
            "undecided": Table(),
            "began": 0.0,
            "limit": self.limit,
            "idle": True,  # nobody has ever come
            "back": False,  # in this round
            **_fresh(),
        }

    def quota(self, now: Now) -> int:
        return max(1, ceil(self.fraction * now.n_clients - _SLACK))

    def apply(self, update: Update | None, state: State, now: Now) -> tuple[None, State]:
        state = {**self.distributed(state, now), "back": True}
        if update is None:
            return None, state
        state["idle"] = False
        k = update.ticket.client
        late, certain = update.staleness > self.lag, self.certain(k, state, now)
        if k not in state["rows"]:
            state["sizes"][k] = update.n_examples
            if late or not certain:  # it is known from now on, and counts as before
                state = _entered(state, k, state["rest"], now)
        if late:
            state["heard"][k] = now.version  # it is handed the global at once
            return None, state
        state["heard"][k] = now.version + 1
        state |= {
            "examples": state["examples"] + update.n_examples,
            "steps": state["steps"] + update.n_steps,
        }
        if not certain:
            state["undecided"].put(k, _ended(update, now))
            return None, state
        state["picked"][k] = True
        state["again"] += k in state["last"]
        return None, _entered(state, k, _ended(update, now), now)

    def certain(self, k: int, state: State, now: Now) -> bool:
        """Whether k is picked, whoever else comes: clients not picked in the last round go before the others."""
        quota, last = self.quota(now), state["last"]
        if k not in last:
            return len(state["picked"]) < quota
        return bool(state["again"] < quota - (now.n_clients - len(last)))

    def settle(self, state: State, now: Now) -> tuple[Update | None, State]:
        if state["idle"] or not self.over(state, now):
            return None, state
        state, undecided = self.distributed(state, now), state["undecided"]
        waiting = list(undecided)
        free = max(0, self.quota(now) - len(state["picked"]))
        for k in waiting[:free]:
            state["picked"][k] = True
            state = _entered(state, k, undecided[k], now)
        move = as_update(_mean(state, now).sub_(now.weights), now, state["examples"], state["steps"])
        for k in waiting[free:]:
            state = _entered(state, k, undecided[k], now)
        for k in waiting:
            undecided.pop(k)
        lasts = now.time - max(state["began"], now.since) if state["limit"] is None else state["limit"]
        return move, {**state, "last": state["picked"], **_fresh(), "back": False, "began": now.time, "limit": lasts}

    def over(self, state: State, now: Now) -> bool:
        if not now.in_flight:
            return bool(state["back"])
        return len(state["picked"]) >= self.quota(now) or now.time >= self.wakes(state, now)

    def wakes(self, state: State, now: Now) -> float:
        return inf if state["idle"] else ends(state["began"], state["limit"], now)

    def distributed(self, state: State, now: Now) -> State:
        """Once a round: entries that lag too far behind become the global."""
        if state["version"] == now.version:
            return state
        heard = state["heard"]
        for k in list(state["rows"]):
            if now.version - heard[k] > self.lag:
                heard[k] = now.version
                state = _with_row(state, k, now.weights, mass=state["sizes"][k])
        if state["rest"] is not None and now.version - state["rest_heard"] > self.lag:
            state = {**state, "rest": now.weights, "rest_heard": now.version}
        return {**state, "version": now.version}


def _fresh() -> State:
    """A round at its beginning."""
    return {"picked": Marks(), "again": 0, "examples": 0, "steps": 0}


def _with_row(state: State, k: int, row: Tensor, *, mass: float) -> State:
    return {**state, **replace_row(RowCache(state["rows"], state["sum"]), k, row, mass=mass).dump()}


def _entered(state: State, k: int, row: Tensor, now: Now) -> State:
    """w*_k ← row."""
    n_k, known = state["sizes"][k], k in state["rows"]
    state = _with_row(state, k, row, mass=n_k)
    if known:
        return state
    return {**state, "n": state["n"] + n_k, "rest": None if len(state["rows"]) == now.n_clients else state["rest"]}


def _ended(update: Update, now: Now) -> Tensor:
    """w_k; a weight that the update was given scales the way it went, and no running statistics."""
    if update.weight == 1:
        return update.local
    n = now.layout.n_params
    row = torch.add(update.ticket.sent, update.delta, alpha=update.weight)
    return torch.cat([row[:n], update.local[n:]]) if now.layout.stats else row


def _mean(state: State, now: Now) -> Tensor:
    """Σ (n_k/n) w*_k; who has not come yet has the mean size of those who have."""
    known, n = len(state["rows"]), state["n"]
    others = n / known * (now.n_clients - known)
    mean: Tensor = state["sum"] / (n + others)
    return mean.add_(state["rest"], alpha=others / (n + others)) if others else mean


def lag_tolerant(lag: int) -> Dispatch:
    """All who are back are handed the global as a round begins; who came too late to count, at once."""
    rounds = at_epoch_ends()

    def init(weights: Tensor) -> State:
        return {"late": [], "rounds": rounds.init(weights)}

    def hear(update: Update, state: State, _: Now) -> State:
        return {**state, "late": [*state["late"], update.ticket.client]} if update.staleness > lag else state

    def apply(roster: Roster, state: State, now: Now) -> tuple[list[int], State]:
        chosen, after = rounds(roster, state["rounds"], now)
        if not chosen:
            chosen = sorted(k for k in state["late"] if k in roster)
            for k in chosen:
                roster.remove(k)
        return chosen, {"late": [], "rounds": after}

    return Dispatch(apply, init, observe=hear)


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
            on_instant_end=rounds.settle,
            next_wakeup=rounds.wakes,
            dropped_extras=frozenset({CONTROL}),
        ),
        dispatch=lag_tolerant(lag),
    )
