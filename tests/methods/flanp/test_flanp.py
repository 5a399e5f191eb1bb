"""FLANP against its twin, and what it promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import tarry
from tarry.core.errors import BadInput
from tests.helpers.by_flags import build_by_flags
from tests.helpers.events import hand_outs
from tests.methods.flanp.reference import FLANP
from tests.reference.loop import Arrival, play
from tests.reference.match import Case, cases, events_of, few

some = settings(few, max_examples=10)


def check(case: Case, **method: Any) -> FLANP:
    """The library and the twin agree on every cohort and every arrival."""
    problem, seen = case.problem, events_of({"name": "flanp", **method}, case)
    times = [own[0] for own in case.durations]
    twin = FLANP(problem, case.sizes, times, steps=case.steps, lr=case.lr, **method)
    expected = play(twin, twin.train, case.durations, updates=case.updates, pick=twin.choose)
    arrived = [Arrival(e.time, e.client, e.staleness, e.weights.numpy()) for e in seen if e.kind == "arrival"]
    assert [a[:3] for a in arrived] == [e[:3] for e in expected]
    for a, e in zip(arrived, expected, strict=True):
        np.testing.assert_allclose(a.w, e.w, rtol=1e-10, atol=1e-12)
    return twin


METHODS: list[dict[str, Any]] = [
    {**parameters, "solver": solver}
    for solver in ("fedgate", "fedavg")
    for parameters in (
        {},
        {"n0": 1, "c": 2.0},
        {"n0": 1, "mu": 5.0, "c": 5.0},
        {"c": 0.05},
        {"n0": 1, "c": 1e-9, "rounds": 3},
        {"n0": 1, "c": 2.0, "weighting": "uniform"},
    )
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=cases())
def test_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    check(replace(case, updates=20), **method)


SPREAD = Case(4, 2, 3, [4, 2, 3, 5, 3], [[2.5], [0.5], [3.0], [1.0], [1.5]], 2, 0.05, 120, False)


def test_the_stages_are_1_2_4_and_all() -> None:
    twin = check(SPREAD, n0=1, c=1.0)
    assert sorted(set(twin.stages)) == [1, 2, 4, 5]
    assert twin.stages == sorted(twin.stages)
    assert all(twin.stages.count(n) > 1 for n in (1, 2, 4))


@pytest.mark.parametrize(("weighting", "ends"), [("examples", False), ("uniform", True)])
def test_a_stage_ends_by_the_gradient_of_the_mean_that_the_rounds_make(weighting: str, ends: bool) -> None:
    """Slopes 9 and −9 of clients with 3 examples and 1: 4.5 by examples, 0 if all weigh alike. c is between."""
    x = torch.ones(1, 1, dtype=torch.float64)
    data = [(x.expand(n, 1) * slope, torch.zeros(n)) for n, slope in ((3, 9.0), (1, -9.0), (2, 1.0))]
    net = nn.Linear(1, 1, bias=False)
    task = tarry.Task("slopes", model=net, loss=lambda out, _: out.mean(), clients=data, metrics=["loss"])
    seen: list[tarry.Event] = []
    method = {"name": "flanp", "n0": 2, "c": 4.0, "weighting": weighting, "solver": "fedavg"}
    setup: dict[str, Any] = {"delay": [1.0, 1.0, 5.0], "rounds": 4, "steps": 1, "dtype": "float64", "lr": 0.01}
    tarry.run(method, task, callbacks=[seen.append], **setup)
    late = {client for time, client in hand_outs(seen) if time > 0}
    assert late == ({0, 1, 2} if ends else {0, 1})


def test_with_a_tiny_bound_the_fastest_stay_alone_and_rounds_are_short() -> None:
    seen = events_of({"name": "flanp", "n0": 1, "c": 1e-9}, replace(SPREAD, updates=20))
    assert {client for time, client in hand_outs(seen) if time > 0} == {1}
    times = [e.time for e in seen if e.kind == "arrival"][5:]
    assert np.diff(times).tolist() == [0.5] * 14


@pytest.mark.parametrize("limit", [2, 5])
def test_beginning_with_all_it_is_fedavg_to_the_bit_with_its_cohorts(limit: int) -> None:
    case = replace(SPREAD, updates=40)
    ours, other = (
        events_of(m, case, concurrency=limit) for m in ({"name": "flanp", "n0": 5, "solver": "fedavg"}, "fedavg")
    )
    assert hand_outs(ours) == hand_outs(other)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(ours, other, strict=True))


def test_with_equal_speeds_it_is_fedavg() -> None:
    case = replace(SPREAD, durations=[[1.5]] * 5, updates=40)
    ours, other = (events_of(m, case) for m in ({"name": "flanp", "n0": 1, "solver": "fedavg"}, "fedavg"))
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(ours, other, strict=True))


def test_when_few_may_train_at_once_they_are_drawn_among_the_fastest() -> None:
    """Two at a time; three of five take part, once everybody has been timed."""
    seen = events_of({"name": "flanp", "n0": 3, "c": 1e-9}, replace(SPREAD, updates=60), concurrency=2)
    rounds = sorted({time for time, _ in hand_outs(seen)})
    cohorts = [{k for at, k in hand_outs(seen) if at == time} for time in rounds]
    assert set.union(*cohorts[:3]) == set(range(5))
    assert all(len(c) == 2 and c <= {1, 3, 4} for c in cohorts[3:])
    assert len({frozenset(c) for c in cohorts[3:]}) == 3


def test_who_was_lost_at_first_is_the_slowest_until_it_comes() -> None:
    """The fastest, client 1, is lost in the first round: of n = 2 it is not, until all take part."""
    case = replace(SPREAD, lost=frozenset({(1, 0)}), updates=30)
    seen = events_of({"name": "flanp", "c": 1e-9}, case)
    assert {client for time, client in hand_outs(seen) if time > 0} == {3, 4}


def test_a_client_tells_how_far_its_steps_reach() -> None:
    """One number more upwards: steps · η_l, and with momentum what each step's gradient comes to."""

    def step_sizes(**setup: Any) -> set[float]:
        came: list[float] = []

        def note(update: tarry.Update, _: tarry.ServerView) -> tarry.Update:
            came.append(update.extras["rate"].item())
            return update

        method = replace(tarry.methods.build("flanp"), correct=tarry.stateless(note))
        what: dict[str, Any] = {"delay": SPREAD.durations, "updates": 5, "lr": 0.1, "batch": "all", **setup}
        tarry.run(method, SPREAD.problem.task(), dtype="float64", **what)
        return {round(x, 12) for x in came}

    assert step_sizes(steps=3) == {0.3}
    assert step_sizes(steps=2, momentum=0.5) == {0.25}  # 0.1 (1 + ½) of the first gradient, 0.1 of the second
    result = tarry.run("flanp", SPREAD.problem.task(), delay=SPREAD.durations, updates=10, dtype="float64")
    assert result.bytes_up == 10 * 8 * (len(SPREAD.problem.w0) + 1)


@pytest.mark.parametrize(
    ("params", "said"),
    [({"n0": 0}, "--method.n0 0"), ({"mu": 0.0}, "--method.mu 0.0"), ({"c": -1.0}, "--method.c -1.0")],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "flanp", **params)


@pytest.mark.parametrize("method", ["flanp:n0=6", "fedavg+aggregate=flanp:n0=6"])
def test_to_begin_with_more_than_there_are_is_refused(method: str) -> None:
    flag = "aggregate" if "aggregate" in method else "method"
    local = "+local=flanp" if "aggregate" in method else ""
    with pytest.raises(BadInput, match=rf"{flag}\.n0=6: there are only 5 clients; use {flag}\.n0=5, or fewer"):
        tarry.run(method + local, SPREAD.problem.task(), delay=SPREAD.durations, updates=5)


def test_its_clients_are_of_no_use_elsewhere_and_are_refused() -> None:
    with pytest.raises(BadInput, match="local='flanp'"):
        tarry.run("fedavg+local=flanp", SPREAD.problem.task(), delay=SPREAD.durations, updates=5)


def test_fedgate_wants_sgd() -> None:
    with pytest.raises(BadInput, match="optimizer='adam': FedGATE"):
        tarry.run("flanp", SPREAD.problem.task(), delay=SPREAD.durations, updates=5, optimizer="adam", lr=0.1)


def test_with_an_unreachable_bound_all_stages_are_reached_by_the_number_of_rounds() -> None:
    """On a convex problem, and the last stage comes nearer to the minimum than its first weights were."""
    twin = check(replace(SPREAD, updates=200), n0=1, c=1e-12, rounds=4)
    assert [twin.stages.count(n) for n in (1, 2, 4)] == [4 + 1, 4, 4]  # one more: the round of first visits
    assert twin.stages[-1] == 5


def test_fedgate_has_the_minimum_as_its_fixed_point_and_fedavg_has_not() -> None:
    """Two clients with other data and three local steps: all take part from the first round."""
    case = replace(SPREAD, steps=3, updates=2500)
    problem, sizes = case.problem, np.array(case.sizes)

    def gradient(solver: str) -> float:
        method = {"name": "flanp", "n0": 5, "solver": solver}
        w = events_of(method, case)[-1].weights.numpy()
        each = [problem.gradient(k, w) for k in range(len(sizes))]
        return float(np.linalg.norm(np.average(each, axis=0, weights=sizes)))

    assert gradient("fedgate") < 1e-6 < gradient("fedavg")


@pytest.mark.parametrize("case", ["fedogd-l1", "fedogd-l2", "fedogd-l3"])
def test_with_fed_ogds_delays_all_50_clients_take_part_within_half_of_its_300_epochs(case: str) -> None:
    """The settings of experiments/fedogd, with a bound that the gradient does not meet."""
    seen: list[tarry.Event] = []
    method = {"name": "flanp", "n0": 2, "solver": "fedgate", "rounds": 10, "c": 1e-12}
    setup: dict[str, Any] = {"clients": 50, "delay": {"name": case, "r": 1.0}, "time": 150.0, "steps": 1, "batch": 8}
    tarry.run(method, "digits", callbacks=[seen.append], eval_every=200.0, **setup)
    rounds: dict[float, int] = {}
    for time, _ in hand_outs(seen):
        rounds[time] = rounds.get(time, 0) + 1
    sizes = list(rounds.values())
    assert sizes[0] == sizes[-1] == 50  # the round of first visits, and the last stage
    assert min(sizes) < 50
