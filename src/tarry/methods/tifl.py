"""TiFL: A Tier-based Federated Learning System (Chai et al., HPDC 2020).

    profile   every client is timed; their latencies, in order, are cut into m tiers
    round     a tier is picked with its probability, a cohort is drawn within it, W ← Σ (n_k / n) w_k
    static    probabilities stay as they are                                                             Table 1
              uniform 1/m each · fast: the fastest tier alone · slow: the slowest alone
              random  0.7, 0.1, 0.1, 0.05, 0.05
              fast1, fast2, fast3: the slowest tier 0.1, 0.05, 0, the others alike
    adaptive  every I rounds, if the tier of the moment has not got better since I rounds ago:           Algorithm 2
              of the n tiers with credits left, the i-th worst (i = 0, 1, …) gets (n − i)/D, D = n (n + 1)/2
              a round costs its tier a credit; without credits it is not picked

The paper's text was not available. Algorithm 2 is as in two public re-implementations. D = n (n − 1)/2, which is also
found, makes (n − i)/D probabilities only if i counts from 1, and then the best tier is never picked. The numbers of
Table 1 are as commonly stated, and were not compared with the paper.

A client is timed at its first visit (parts.tiers): rounds go to clients not tried yet, filled up with others, until all
were tried once. These rounds train as well; the paper profiles before training. A client's tier follows from its rank,
the number of faster clients: ⌊m · rank / N⌋. So tiers have about equal sizes, as in the paper's experiments, and
clients of one latency share a tier; with one latency for all there is one tier. A client whose first visit was lost
counts as slow until its first arrival; the paper drops it for good. A new client's first visit puts it into a tier.

Deviation: Algorithm 2 uses the accuracy of W on each tier's test data, which this server does not have. Here it is the
mean of the losses that the tier's clients reported last, and worst means the largest loss. Not given in the paper: the
number of credits (`none`: no limit), I (10), and what to do when all credits are spent (tiers are picked as without
credits). Tiers without an idle client are passed over.

One tier is FedAvg, with its cohorts. Fed-OGD's paper describes TiFL as asynchronous between tiers; the original is not:
a round belongs to one tier. The server stores FedAvg's sum and a few numbers per client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Generic, Literal, TypeVar

from torch import Tensor

from ..core import rng
from ..core.client_table import ClientScalars
from ..core.errors import BadInput
from ..core.idle_clients import IdleClients
from ..core.method import Method, ServerView
from ..core.parameter import AtMost
from ..core.parts import Dispatch
from ..core.state_tree import StateRecord
from ..core.tickets import Update
from ..parts.aggregate import round_mean
from ..parts.checks import at_least, check
from ..parts.tiers import Speeds, at_most_all, draw_among, first_visits, rank_clients, record_first_duration
from .registry import methods

__all__ = ["tifl"]

Policy = Literal["adaptive", "uniform", "random", "fast", "slow", "fast1", "fast2", "fast3"]
_TIER = 1  # the key of the draw of a tier, apart from the draw of its cohort


@dataclass(frozen=True)
class TierState(StateRecord):
    """The speeds of clients."""

    book: Speeds


@dataclass(frozen=True)
class AdaptiveState(TierState):
    """The memory of Algorithm 2 from round to round."""

    losses: ClientScalars  # the last loss of every client
    odds: list[float]
    credits: list[int] | None  # of every tier; None: no end to them
    round: int
    tier: int  # of the last round
    before: list[float]  # the tiers' losses, I rounds ago


State = TypeVar("State", bound=TierState)


@dataclass(frozen=True)
class Tiers(Generic[State]):
    """Dispatch: a cohort of one tier, once no client is training."""

    odds: tuple[float, ...]  # the probability of every tier, the fastest first

    def observe(self, update: Update, state: State, view: ServerView) -> State:
        return replace(state, book=record_first_duration(state.book, update, view))

    def apply(self, roster: IdleClients, state: State, view: ServerView) -> tuple[list[int], State]:
        if view.in_flight or not len(roster):
            return [], state
        if len(self.odds) > 1 and (cohort := first_visits(roster, state.book, view)):
            return cohort, state
        state = replace(state, book=rank_clients(state.book, view.n_clients))
        members: dict[int, list[int]] = {}
        for k in roster:
            members.setdefault(self.tier(k, state, view), []).append(k)
        odds, state = self.probabilities(state, view)
        tier = _draw_tier(odds, sorted(members), view)
        return draw_among(roster, members[tier], roster.concurrency, view), self.after_round(tier, state)

    def tier(self, k: int, state: State, view: ServerView) -> int:
        return int(len(self.odds) * state.book.rank[k] // view.n_clients)

    def probabilities(self, state: State, view: ServerView) -> tuple[Sequence[float], State]:  # noqa: ARG002 - for overriding
        """Return the probabilities of this round."""
        return self.odds, state

    def after_round(self, tier: int, state: State) -> State:  # noqa: ARG002 - for overriding
        """Return the state after a round of that tier was handed out."""
        return state


@dataclass(frozen=True)
class Static(Tiers[TierState]):
    """The probabilities of Table 1."""

    def init(self, _: Tensor) -> TierState:
        return TierState(Speeds.empty())


@dataclass(frozen=True)
class Adaptive(Tiers[AdaptiveState]):
    """Algorithm 2, by losses."""

    interval: int
    credits: int | None

    def init(self, _: Tensor) -> AdaptiveState:
        credits = None if self.credits is None else [self.credits] * len(self.odds)
        return AdaptiveState(Speeds.empty(), ClientScalars(), list(self.odds), credits, round=0, tier=0, before=[])

    def observe(self, update: Update, state: AdaptiveState, view: ServerView) -> AdaptiveState:
        state.losses[update.ticket.client] = update.loss
        return super().observe(update, state, view)

    def probabilities(self, state: AdaptiveState, view: ServerView) -> tuple[Sequence[float], AdaptiveState]:
        odds = state.odds
        left = range(len(odds)) if state.credits is None else [t for t, c in enumerate(state.credits) if c > 0]
        if state.round % self.interval == 0:
            losses = self.mean_losses(state, view)
            if state.round > 0 and losses[state.tier] >= state.before[state.tier]:
                odds = _by_loss(losses, left)
            state = replace(state, before=losses, odds=odds)
        return [p if t in left else 0.0 for t, p in enumerate(odds)], state

    def mean_losses(self, state: AdaptiveState, view: ServerView) -> list[float]:
        """Return the mean loss of every tier; 0 for a tier without a report."""
        sums, counts = [0.0] * len(self.odds), [0] * len(self.odds)
        for k, loss in state.losses.items():
            t = self.tier(k, state, view)
            sums[t] += loss
            counts[t] += 1
        return [s / max(n, 1) for s, n in zip(sums, counts, strict=True)]

    def after_round(self, tier: int, state: AdaptiveState) -> AdaptiveState:
        credits = state.credits
        if credits is not None:
            credits = [max(c - (t == tier), 0) for t, c in enumerate(credits)]
        return replace(state, credits=credits, tier=tier, round=state.round + 1)


def _by_loss(losses: Sequence[float], left: Sequence[int]) -> list[float]:
    """Return (n − i)/D for the i-th worst of the n tiers that have credits left, 0 for the others."""
    n, odds = len(left), [0.0] * len(losses)
    for i, t in enumerate(sorted(left, key=lambda t: -losses[t])):
        odds[t] = 2 * (n - i) / (n * (n + 1))
    return odds


def _draw_tier(odds: Sequence[float], tiers: Sequence[int], view: ServerView) -> int:
    """Draw one of these tiers by its odds among them; if all odds are 0, uniformly."""
    total = sum(odds[t] for t in tiers)
    shares = [odds[t] / total if total else 1 / len(tiers) for t in tiers]
    u = rng.uniform(rng.extend(view.key, _TIER))
    for t, share in zip(tiers, shares, strict=True):
        u -= share
        if u < 0:
            return t
    return tiers[-1]


_SLOWEST = {"fast1": 0.1, "fast2": 0.05, "fast3": 0.0}


def static(policy: Policy, m: int) -> tuple[float, ...]:
    """Table 1, for m tiers."""
    if policy in ("adaptive", "uniform") or m == 1:
        return (1 / m,) * m
    if policy in ("fast", "slow"):
        rest = (0.0,) * (m - 1)
        return (1.0, *rest) if policy == "fast" else (*rest, 1.0)
    if policy in _SLOWEST:
        p = _SLOWEST[policy]
        return (*((1 - p) / (m - 1),) * (m - 1), p)
    if m != 5:
        raise BadInput(
            f"--method.policy random --method.tiers {m}: the paper gives it for 5 tiers; use --method.tiers 5"
        )
    return (0.7, 0.1, 0.1, 0.05, 0.05)


@methods.register(
    "tifl",
    paper="Chai et al. 2020, TiFL: A Tier-based Federated Learning System",
    use="Rounds among clients of very different speed: no client waits for one of a slower tier.",
)
def tifl(
    *,
    tiers: Annotated[
        int, "m, how many tiers of about equal size clients are put into; 1 is FedAvg", AtMost(10_000)
    ] = 5,
    policy: Annotated[Policy, "how a round's tier is picked: Algorithm 2, or with the probabilities of Table 1"] = (
        "adaptive"
    ),
    interval: Annotated[int, "adaptive: I, the rounds after which probabilities may change"] = 10,
    credits: Annotated[int | None, "adaptive: the rounds that a tier may have; none = no end to them"] = None,
) -> Method:
    """Synchronous rounds, each among clients of about one speed."""
    check(at_least(1, tiers=tiers, interval=interval, credits=credits))
    odds = static(policy, tiers)
    who: Static | Adaptive = Static(odds)
    if policy == "adaptive" and tiers > 1:
        who = Adaptive(odds, interval, credits)
    dispatch = Dispatch(who.apply, who.init, observe=who.observe, check_task=at_most_all("tiers", tiers))
    return Method("tifl", staleness="always 0", aggregate=round_mean(), dispatch=dispatch)
