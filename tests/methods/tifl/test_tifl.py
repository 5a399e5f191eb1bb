"""TiFL: rounds of one tier, averaged as FedAvg's; tiers and probabilities against their twins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tarry
from tarry.core.errors import BadInput
from tarry.core.idle_clients import IdleClients
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import ServerView
from tarry.core.tickets import Ticket, Update
from tests.helpers.by_flags import build_by_flags
from tests.helpers.events import hand_outs
from tests.methods.fedavg.reference import FedAvg
from tests.methods.tifl.reference import change_probs, cohorts, tiers
from tests.reference.match import Case, cases, check, events_of, few

some = settings(few, max_examples=8)


@pytest.mark.parametrize("method", [{}, {"policy": "uniform"}, {"policy": "slow"}], ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_a_round_of_whomever_is_averaged_as_fedavgs(method: dict[str, Any], case: Case) -> None:
    """The twin follows the library's cohorts."""
    n = len(case.sizes)
    check({"name": "tifl", "tiers": min(3, n), **method}, case, FedAvg(case.problem.w0, case.sizes), concurrency=n)


@pytest.mark.parametrize("m", [2, 3, 5])
@some
@given(case=cases())
def test_after_a_round_of_all_every_round_is_a_whole_tier(m: int, case: Case) -> None:
    case, n = replace(case, updates=20), len(case.sizes)
    m = min(m, n)
    rounds = cohorts(hand_outs(events_of({"name": "tifl", "tiers": m}, case)))
    known = tiers({k: case.durations[k][0] for k in range(n)}, m, n)
    assert rounds[0] == set(range(n))
    assert len(rounds) > 1
    assert all(cohort in known for cohort in rounds[1:])


@some
@given(cases(losses=True), st.integers(2, 4))
def test_who_is_lost_at_first_counts_as_slow_until_it_comes(case: Case, m: int) -> None:
    case, n = replace(case, updates=20), len(case.sizes)
    m = min(m, n)
    seen = events_of({"name": "tifl", "tiers": m}, case)
    rounds = sorted({time for time, _ in hand_outs(seen)})
    for time in rounds[1:]:
        latency = {}
        for e in seen:
            if e.kind == "arrival" and e.time <= time and e.client not in latency:
                started = next(h.time for h in seen if h.kind == "hand_out" and h.ticket == e.ticket)
                latency[e.client] = e.time - started
        cohort = {client for at, client in hand_outs(seen) if at == time}
        assert cohort in tiers(latency, m, n)


def test_with_one_tier_it_is_fedavg_to_the_bit_with_its_cohorts() -> None:
    case = Case(1, 2, 2, [3, 1, 4, 2, 5], [[1.0], [2.0], [0.5], [3.0], [1.5]], 2, 0.05, 40, False)
    ours, other = (events_of(m, case, concurrency=2) for m in ({"name": "tifl", "tiers": 1}, "fedavg"))
    assert hand_outs(ours) == hand_outs(other)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(ours, other, strict=True))


def test_with_one_latency_for_all_it_is_fedavg() -> None:
    case = Case(1, 2, 2, [3, 1, 4, 2, 5], [[1.5]] * 5, 2, 0.05, 40, False)
    ours, other = (events_of(m, case) for m in ("tifl", "fedavg"))
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(ours, other, strict=True))


def test_few_at_a_time_the_first_rounds_reach_everybody_and_a_newcomer_is_timed_when_it_comes() -> None:
    task = Case(1, 2, 2, [3] * 7, [], 1, 0.05, 1, False).problem.task()
    delay = [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [0.5]]
    seen: list[tarry.Event] = []
    setup: dict[str, Any] = {"concurrency": 3, "availability": {"6": [[30.0, 99.0]]}, "rounds": 20, "dtype": "float64"}
    tarry.run({"name": "tifl", "tiers": 2}, task, delay=delay, callbacks=[seen.append], **setup)
    rounds = cohorts(hand_outs(seen))
    assert rounds[0] | rounds[1] == set(range(6))
    came = next(i for i, cohort in enumerate(rounds) if 6 in cohort)
    before, after = ({0, 1, 2, 3}, {4, 5}), ({0, 1, 2, 6}, {3, 4, 5})  # ⌊2 · rank / 7⌋, then of one more
    assert all(any(r <= tier for tier in before) for r in rounds[2:came])
    assert all(any(r <= tier for tier in after) for r in rounds[came + 1 :])
    assert all(len(r) <= 3 for r in rounds)


# The dispatch part by itself

W = torch.zeros(1)
LAYOUT = Layout((Block("w", 0, 1, (1,), Kind.PARAM),))


class Federation:
    """A dispatch part with everybody idle at every round, after the first; client k takes k + 1 seconds."""

    def __init__(self, n: int, limit: int, first: Mapping[int, float] = MappingProxyType({}), **params: Any):
        self.part, self.n, self.limit = tarry.methods.build("tifl", **params).dispatch, n, limit
        self.state, self.moment = self.part.init(W), 0
        self.round(first)

    def now(self, time: float = 0.0) -> ServerView:
        self.moment += 1
        return ServerView(W, LAYOUT, 0, time, 0, self.n, 7, self.moment)

    def round(self, losses: Mapping[int, float]) -> set[int]:
        """The cohort of a round whose members report these losses (1 where nothing is said)."""
        cohort, self.state = self.part(IdleClients(self.n, self.limit), self.state, self.now())
        assert self.part.observe is not None
        for k in cohort:
            update = Update(Ticket(0, k, 0, 0, 0.0, W, W), W, 1, 1, 0, losses.get(k, 1.0))
            self.state = self.part.observe(update, self.state, self.now(k + 1.0))
        return set(cohort)


@pytest.mark.parametrize(
    ("policy", "odds"),
    [
        ("uniform", [0.2] * 5),
        ("random", [0.7, 0.1, 0.1, 0.05, 0.05]),
        ("fast", [1.0, 0.0, 0.0, 0.0, 0.0]),
        ("slow", [0.0, 0.0, 0.0, 0.0, 1.0]),
        ("fast1", [0.225, 0.225, 0.225, 0.225, 0.1]),
        ("fast2", [0.2375, 0.2375, 0.2375, 0.2375, 0.05]),
        ("fast3", [0.25, 0.25, 0.25, 0.25, 0.0]),
        ("adaptive", [0.2] * 5),
    ],
)
def test_tiers_are_picked_as_often_as_the_policy_says(policy: str, odds: list[float]) -> None:
    """2000 rounds of ten clients in five tiers of two; losses stay, so that what is adaptive begins alike."""
    interval = {"interval": 10_000} if policy == "adaptive" else {}
    fed = Federation(10, 10, policy=policy, **interval)
    picked = Counter(min(fed.round({})) // 2 for _ in range(2000))
    for tier, p in enumerate(odds):
        assert picked[tier] / 2000 == pytest.approx(p, abs=0.03)
        assert (picked[tier] == 0) == (p == 0)


def test_members_of_a_tier_are_drawn_alike() -> None:
    """Two at a time out of tiers of five."""
    fed = Federation(10, 2, tiers=2, policy="uniform")
    while len(fed.state.book.seconds) < 10:
        fed.round({})
    rounds = [fed.round({}) for _ in range(2000)]
    assert all(len(r) == 2 and len({k // 5 for k in r}) == 1 for r in rounds)
    drawn = Counter(k for r in rounds for k in r)
    assert all(count / 2000 == pytest.approx(0.2, abs=0.03) for count in drawn.values())


def test_every_i_rounds_the_worse_tiers_become_likelier_unless_the_tier_of_the_moment_got_better() -> None:
    loss = {0: 5.0, 1: 5.0, 2: 9.0, 3: 9.0, 4: 7.0, 5: 7.0}
    fed, odds = Federation(6, 6, loss, tiers=3, interval=4), []
    for r in range(12):
        fed.round(
            {k: v - 0.1 * (r + 1) for k, v in loss.items()} if r < 4 else loss
        )  # falls until round 4, then back up
        odds.append(fed.state.odds)
    assert odds[:8] == [[1 / 3] * 3] * 8, "the tier of round 3 reported less than at the beginning"
    assert odds[8:] == [pytest.approx(change_probs([5.0, 9.0, 7.0], [1, 1, 1]), rel=1e-12)] * 4


def test_a_tier_has_as_many_rounds_as_it_has_credits() -> None:
    """Then the others alone; and when nobody has any, all again."""
    fed = Federation(6, 6, tiers=3, credits=3)
    picked = [min(fed.round({})) // 2 for _ in range(9)]
    assert Counter(picked) == {0: 3, 1: 3, 2: 3}
    assert len({min(fed.round({})) // 2 for _ in range(30)}) == 3


@pytest.mark.parametrize("credits", [[1, 1, 1, 1], [3, 0, 2, 1], [0, 0, 1, 0]])
def test_new_probabilities_are_their_twins(credits: list[int]) -> None:
    """In the round after the change, of tiers with credits only."""
    losses = [0.4, 2.5, 0.1, 1.0]
    fed = Federation(4, 4, tiers=4, interval=1, credits=9)
    for k, loss in enumerate(losses):
        fed.state.losses[k] = loss
    fed.state = replace(fed.state, credits=credits, round=1, before=[0.0] * 4)
    fed.round({})
    assert fed.state.odds == pytest.approx(change_probs(losses, credits), rel=1e-12)
    assert sum(fed.state.odds) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"tiers": 0}, "--method.tiers 0"),
        ({"interval": 0}, "--method.interval 0"),
        ({"credits": 0}, "--method.credits 0"),
        ({"policy": "random", "tiers": 4}, "--method.policy random --method.tiers 4"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "tifl", **params)


@pytest.mark.parametrize(("method", "tiers"), [("tifl", 5), ("tifl:tiers=3,policy=uniform", 3)])
def test_more_tiers_than_clients_are_refused(method: str, tiers: int) -> None:
    task = Case(1, 2, 2, [3, 1], [[1.0], [2.0]], 1, 0.05, 4, False).problem.task()
    said = rf"method\.tiers={tiers}: there are only 2 clients; use method\.tiers=2, or fewer"
    with pytest.raises(BadInput, match=said):
        tarry.run(method, task, delay=[[1.0], [2.0]], updates=4)
