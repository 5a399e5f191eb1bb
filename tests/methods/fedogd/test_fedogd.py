"""Fed-OGD against its twins, and what it promises: signs, groups, sums without gradients, bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.core.state_tree import tensors
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import batchnorm_net, random_clients, towards
from tests.methods.fedogd.reference import FedOGD, algorithm_1, client_update
from tests.reference.clock import agree, following, play
from tests.reference.loop import pick_all
from tests.reference.match import Case, cases, events_of, few

some = settings(few, max_examples=10)


def check(
    method: dict[str, Any], case: Case, *, concurrency: int | None = None, decay: float = 1.0, rtol: float = 1e-10
) -> None:
    """The library and the twin agree on every step and hand-out: when, who, and the global weights."""
    problem = case.problem
    seen = events_of({"name": "fedogd", **method}, case, concurrency=concurrency, lr_decay=decay)
    how = {k: v for k, v in method.items() if k in ("epoch", "weighting", "cache", "stored")}
    announced = method.get("groups") == "announced" or method.get("privacy", False)
    server = FedOGD(problem.w0, n=len(case.sizes), eta_l=case.lr, announced=announced, decay=decay, **how)

    def train(k: int) -> Any:
        how = {"steps": case.steps, "eta_l": server.eta_l, "projection": method.get("projection", "conflict")}
        return client_update(problem, k, server.w, server.base(k), **how)

    pick = following(seen) if concurrency else pick_all
    steps = play(server, train, case.durations, updates=case.updates, pick=pick, lost=case.lost)
    agree(seen, *steps, rtol=rtol)


METHODS: list[dict[str, Any]] = [
    {},
    {"weighting": "clients"},
    {"cache": False},
    {"projection": "always"},
    {"projection": "basis", "stored": 1},
    {"projection": "basis", "stored": 3, "groups": "announced"},
    {"projection": "never"},
    {"groups": "announced"},
    {"groups": "announced", "cache": False},
    {"epoch": 1.5},
    {"epoch": 2.0, "groups": "announced", "weighting": "clients"},
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    check(method, case)


@some
@given(case=cases(), limit=st.integers(1, 2))
def test_it_is_its_twin_when_not_all_train_at_once(case: Case, limit: int) -> None:
    check({}, case, concurrency=limit)


@pytest.mark.parametrize(
    "method", [{"privacy": True}, {"privacy": True, "epoch": 1.5, "weighting": "clients"}], ids=str
)
@some
@given(case=cases(losses=True))
def test_with_differences_it_is_the_twin_that_caches(method: dict[str, Any], case: Case) -> None:
    """Durations change from visit to visit, so clients change groups; some visits are lost."""
    check(method, case, rtol=1e-9)


FALLING: list[dict[str, Any]] = [
    {},
    {"weighting": "clients", "epoch": 1.5},
    {"groups": "announced"},
    {"privacy": True},
    {"privacy": True, "projection": "never", "epoch": 1.5},
]


@pytest.mark.parametrize("method", FALLING, ids=str)
@some
@given(case=cases(losses=True))
def test_at_a_rate_that_falls_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    check(method, case, decay=0.7, rtol=1e-8)


@some
@given(case=cases(), every=st.lists(st.sampled_from([1, 3, 5]), min_size=5, max_size=5))
def test_with_answers_every_1st_3rd_and_5th_epoch_it_is_algorithm_1(case: Case, every: list[int]) -> None:
    """15 epochs, in which everybody comes back a whole number of times. Somebody is active, as in the paper."""
    every = [1, *every][: len(case.sizes)]
    updates = sum(15 // n for n in every)
    durations = [[float(n)] for n in every]
    seen = events_of({"name": "fedogd"}, replace(case, durations=durations, updates=updates + 1))
    steps = [e for e in seen if e.kind == "step"][:15]
    expected = algorithm_1(case.problem, every, epochs=15, steps=case.steps, eta_g=0.5, eta_l=case.lr)
    assert [e.time for e in steps] == [float(t) for t in range(1, 16)]
    for e, w in zip(steps, expected, strict=True):
        np.testing.assert_allclose(e.weights.numpy(), w, rtol=1e-10, atol=1e-12)


# Signs, on quadratics ½ ‖w − a_k‖²: the gradient is w − a_k, and a client moves straight towards a_k.


def watched(method: tarry.Method, task: tarry.Task, **setup: Any) -> tuple[list[tarry.Event], list[Any]]:
    """Events, and every update in order of arrival."""
    seen: list[tarry.Event] = []
    came: list[Any] = []
    correct = tarry.stateless(lambda update, _: came.append(update) or update)
    what: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 1, "lr": 0.5, **setup}
    tarry.run(replace(method, correct=correct), task, callbacks=[seen.append], **what)
    return seen, came


def fedogd(**params: Any) -> tarry.Method:
    return build_by_flags(tarry.methods, "fedogd", **params)


def test_the_global_step_goes_towards_the_clients() -> None:
    """One client at (1, 2), η_l = ½: it goes half the way, and with η_g = 1 so does the global."""
    seen, _ = watched(fedogd(eta=1.0), towards((1.0, 2.0)), delay=[[1.0]], rounds=3)
    assert [e.weights.tolist() for e in seen if e.kind == "step"] == [[0.5, 1.0], [0.75, 1.5], [0.875, 1.75]]


@pytest.mark.parametrize(
    ("straggler", "moved"),
    [
        ((-4.0, 0.0), [False, True]),  # it wants left, the active client right: nothing of that is left
        ((+4.0, 0.0), [True, True]),  # both want right: no conflict, nothing is removed
        ((0.0, -4.0), [True, False]),
    ],
)
def test_what_goes_against_the_other_group_is_removed_and_what_goes_with_it_stays(
    straggler: tuple[float, float], moved: list[bool]
) -> None:
    """Active at (8, 8), a straggler of three epochs; the base meets the active client at its fourth visit."""
    method = fedogd(eta=0.1)
    _, came = watched(method, towards((8.0, 8.0), straggler), delay=[[1.0], [3.0]], updates=5)
    fourth = next(u for u in came if u.ticket.client == 0 and u.ticket.visit == 3)
    whole = 0.5 * (8.0 - fourth.ticket.sent)  # what plain training would do
    assert (whole.abs() > 1).all()
    torch.testing.assert_close(fourth.delta, whole * torch.tensor(moved), rtol=1e-12, atol=1e-12)


def test_traditional_ogd_removes_what_agrees_as_well() -> None:
    _, came = watched(fedogd(projection="always"), towards((8.0, 8.0), (4.0, 0.0)), delay=[[1.0], [3.0]], updates=5)
    fourth = next(u for u in came if u.ticket.client == 0 and u.ticket.visit == 3)
    assert abs(fourth.delta[0].item()) < 1e-12 < fourth.delta[1].item()


# Laws


LAW: dict[str, Any] = {"delay": [[1.0], [1.0], [3.0], [5.0]], "time": 30.0, "steps": 2, "lr": 0.01}


def test_with_nobody_conflicting_the_step_is_the_sum_of_the_group_means() -> None:
    """All want the same direction, by different ways: whatever base there is, ⟨g, b⟩ > 0."""
    task = towards((50.0, 90.0), (90.0, 50.0), (70.0, 60.0), (60.0, 70.0))
    seen, came = watched(fedogd(), task, **LAW)
    latest: dict[int, Tensor] = {}
    w, steps = torch.zeros(2, dtype=torch.float64), [e for e in seen if e.kind == "step"]
    for e in steps:
        while came and came[0].ticket.time + LAW["delay"][came[0].ticket.client][0] <= e.time:
            update = came.pop(0)
            latest[update.ticket.client] = update.delta
        groups = [[d for k, d in latest.items() if (k > 1) is slow] for slow in (False, True)]
        w = w + 0.5 * sum(torch.stack(g).mean(dim=0) for g in groups if g)
        torch.testing.assert_close(e.weights, w, rtol=1e-12, atol=0)
    assert len(steps) == 30
    plain, _ = watched(fedogd(projection="never"), task, **LAW)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(seen, plain, strict=True))


@pytest.mark.parametrize("params", [{}, {"weighting": "clients"}, {"cache": False}, {"privacy": True}], ids=str)
def test_with_equal_speed_a_whole_step_and_no_projection_it_is_fedavg(params: dict[str, Any]) -> None:
    task = towards((5.0, 1.0), (-2.0, 3.0), (0.0, -4.0))
    setup: dict[str, Any] = {"delay": [2.0, 2.0, 2.0], "rounds": 8, "steps": 3, "lr": 0.1}
    seen, _ = watched(fedogd(eta=1.0, projection="never", **params), task, **setup)
    other, _ = watched(tarry.methods.build("fedavg", weighting="uniform"), task, **setup)
    ours = [e.weights for e in seen if e.kind == "step"]
    torch.testing.assert_close(ours, [e.weights for e in other if e.stepped], rtol=1e-12, atol=1e-14)
    assert len(ours) == 8


# Privacy


CHANGING: dict[str, Any] = {"name": "fedogd-l2", "change": 0.3}
SLOW_AND_FAST = [[1.0], [1.0, 4.0], [1.0], [3.0], [3.0, 1.0, 1.0], [5.0, 1.0]]


def batchnorm_task() -> tarry.Task:
    """Six clients whose inputs are spread ever less, and a model with running statistics."""
    data = random_clients([12] * 6, 3, 2, seed=9, scales=[4.0 ** (1 - k) for k in range(6)])
    module = batchnorm_net(3, 4, 2, momentum=0.5, seed=8)
    return tarry.Task("normed", model=module, loss=nn.functional.cross_entropy, clients=data)


def trajectory(delay: Any, **params: Any) -> list[Tensor]:
    setup = {"delay": delay, "time": 20.0, "steps": 3, "batch": 6, "lr": 0.05, "seed": 2, "failure_rate": 0.1}
    seen: list[tarry.Event] = []
    tarry.run(fedogd(**params), batchnorm_task(), dtype="float64", callbacks=[seen.append], **setup)
    return [e.weights for e in seen if e.kind == "step"]


@pytest.mark.parametrize(
    ("delay", "params"),
    [(CHANGING, {}), (SLOW_AND_FAST, {}), (SLOW_AND_FAST, {"weighting": "clients"})],
    ids=["drawn", "scripted", "unweighted"],
)
def test_differences_give_the_trajectory_of_the_cache(delay: Any, params: dict[str, Any]) -> None:
    """Weights and running statistics, with clients changing groups and visits lost."""
    private = trajectory(delay, privacy=True, **params)
    torch.testing.assert_close(private, trajectory(delay, groups="announced", **params), rtol=1e-9, atol=1e-10)
    assert not torch.allclose(private[-1], trajectory(delay, **params)[-1], rtol=1e-3), "groups did change"


def test_with_fixed_groups_telling_them_ahead_changes_nothing() -> None:
    def run(**params: Any) -> list[Tensor]:
        seen, _ = watched(fedogd(**params), towards(*TARGETS), delay={"name": "fedogd-l2"}, time=30.0, lr=0.1)
        return [e.weights for e in seen if e.kind == "step"]

    torch.testing.assert_close(run(privacy=True), run(), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(run(groups="announced"), run(), rtol=0, atol=0)


TARGETS = [(8.0, 1.0), (7.0, 3.0), (5.0, -4.0), (-3.0, 6.0), (-9.0, 2.0), (-2.0, -7.0)]


def simulated(look: Callable[[Any], None], **params: Any) -> Any:
    """A run of three active clients and three stragglers, looked at after every instant."""
    setup = {"delay": [[1.0]] * 3 + [[3.0]] * 3, "time": 12.0, "dtype": "float64", "batch": "all", "lr": 0.1}
    made = build_run(Spec.of({"method": fedogd(**params), "task": towards(*TARGETS), "steps": 2, **setup}))
    executor = Simulation(made).executor()
    sim = Simulation(made).simulator(executor, [])
    sim.run(lambda: look(sim))
    executor.close()
    return sim


@pytest.mark.parametrize("private", [True, False])
def test_the_private_server_keeps_nobodys_gradient_and_the_other_keeps_everybodys(private: bool) -> None:
    """The clients' own memories are compared with all that the server's parts hold, up to sign."""
    found, looked = [0], [0]
    gradients: dict[int, Tensor] = {}

    def look(sim: Any) -> None:
        entries = sim._memories.get("entry", {})
        gradients.update({k: entries[k] for k in entries})
        held = [t.double() for t in tensors(sim.server.state) if t.shape == (2,)]
        for g in gradients.values():
            looked[0] += len(held)
            found[0] += sum(torch.allclose(t, s * g, rtol=1e-6) for t in held for s in (1, -1))

    simulated(look, privacy=True)
    assert (found[0], looked[0] > 100) == (0, True)
    if not private:
        states: list[list[Tensor]] = []
        simulated(lambda sim: states.append(list(sim.server.state["aggregate"].book.M.values())))
        assert all(any(torch.allclose(t, g) for t in states[-1]) for g in gradients.values())


# Running statistics, bytes, memory, notes


def test_statistics_go_eta_of_the_way_to_the_mean_of_the_group_means() -> None:
    """Each client's latest own statistics count until its next; the weights' delta says nothing about them."""
    seen, came = watched(
        fedogd(eta=0.3), batchnorm_task(), delay=[[1.0]] * 3 + [[3.0]] * 3, time=9.0, steps=3, batch=6, lr=0.05
    )
    n = came[0].delta.numel() - 8
    now, latest = came[0].ticket.sent[n:], dict[int, Tensor]()
    for e in (e for e in seen if e.kind == "step"):
        while came and came[0].ticket.time + (1 if came[0].ticket.client < 3 else 3) <= e.time:
            update = came.pop(0)
            latest[update.ticket.client] = update.local[n:]
        groups = [[s for k, s in latest.items() if (k > 2) is slow] for slow in (False, True)]
        goal = [torch.stack(g).mean(dim=0) for g in groups if g]
        now = now + 0.3 * (sum(goal) / len(goal) - now)
        torch.testing.assert_close(e.weights[n:], now, rtol=1e-12, atol=0)


def test_a_round_trip_is_three_models_and_the_server_keeps_k_and_two() -> None:
    """12 s: 36 visits of active clients, 12 of stragglers; bases go to those handed out when the others had come."""
    sim = simulated(lambda _: None)
    size = 2 * 8
    active, slow = 3 * 13, 3 * 5  # hand-outs at 0, 1, …, 12 and at 0, 3, …, 12
    with_base = 3 * 10 + 3 * 4  # from 3 on
    assert sim.engine.bytes_up == size * (36 + 12)
    assert sim.engine.bytes_down == size * (active + slow + with_base)
    kept = list(tensors(sim.server.state["aggregate"]))
    assert sum(t.nbytes for t in kept) == size * (6 + 2)
    assert sim.server.meter.peak >= size * (6 + 2 + 1)


def test_a_change_of_groups_costs_one_model_more_upwards() -> None:
    setup: dict[str, Any] = {"delay": [[1.0], [1.0, 3.0, 1.0, 1.0]], "time": 6.0, "dtype": "float64", "steps": 1}
    result = tarry.run(fedogd(privacy=True), towards(*TARGETS[:2]), **setup)
    # client 1 comes at 1, 4, 5, 6: told active, active, straggler (changes), active (changes back)
    assert result.bytes_up == 16 * (6 + 4 + 2)


def test_hand_outs_of_a_moment_share_one_base() -> None:
    seen: dict[int, Any] = {}

    def look(sim: Any) -> None:
        if sim.time == 6.0:
            seen.update({t.client: t.payload["base"] for t in sim.server.tickets.values()})

    simulated(look)
    assert len(seen) == 6
    assert len({id(seen[k]) for k in range(3)}) == len({id(seen[k]) for k in range(3, 6)}) == 1
    assert seen[0] is not seen[3]


def test_the_share_of_conflicting_steps_is_noted() -> None:
    def notes(other: tuple[float, float]) -> list[float]:
        seen: list[tarry.Event] = []
        setup: dict[str, Any] = {"delay": [[1.0], [3.0]], "time": 9.0, "dtype": "float64", "lr": 0.01, "steps": 4}
        tarry.run(fedogd(), towards((90.0, 0.0), other), callbacks=[seen.append], diagnose=True, **setup)
        return [e.notes["conflict"] for e in seen if e.kind == "arrival" and e.client == 0 and e.notes]

    # on a line, the straggler's second visit finds all of its gradient against the others: it uploads 0, no base
    assert notes((-90.0, 0.0)) == [0.0] * 3 + [1.0] * 3 + [0.0] * 3
    assert notes((50.0, 0.0)) == [0.0] * 9


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"eta": 0.0}, "--method.eta 0.0"),
        ({"epoch": 0.0}, "--method.epoch 0.0"),
        ({"epoch": float("nan")}, "--method.epoch nan"),
        ({"privacy": True, "cache": False}, "--method.privacy true --method.cache false"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        fedogd(**params)


def test_at_a_rate_that_falls_statistics_keep_their_scale_and_differences_change_nothing() -> None:
    """Batch normalization: variances are no smaller for it, and the same whoever keeps the cache."""
    data = random_clients([8] * 3, 3, 2, seed=0, scales=(0.5, 1.0, 2.0))
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    task = tarry.Task("normed", model=net, loss=nn.functional.cross_entropy, clients=data, metrics=["loss"])
    setup: dict[str, Any] = {"dtype": "float64", "steps": 2, "lr_decay": 0.6, "rounds": 9, "lr": 0.1}
    ended = []
    for params in ({"groups": "announced"}, {"privacy": True}):
        seen, came = watched(fedogd(**params), task, delay=[[1.0], [1.0, 3.0], [3.0, 1.0]], batch=4, **setup)
        ended.append(seen[-1].weights)
    torch.testing.assert_close(*ended, rtol=1e-9, atol=1e-12)
    assert 0.01 < ended[0][-4:].min() <= ended[0][-4:].max() < 100
    assert len(came) > 12


def test_with_one_stored_mean_the_basis_is_the_projection_at_every_step() -> None:
    task = towards((8.0, 8.0), (4.0, 0.0))
    delay = [[1.0], [3.0]]
    basis, _ = watched(fedogd(projection="basis", stored=1), task, delay=delay, updates=7)
    always, _ = watched(fedogd(projection="always"), task, delay=delay, updates=7)
    for a, b in zip(basis, always, strict=True):
        torch.testing.assert_close(a.weights, b.weights, rtol=1e-6, atol=1e-6)


def test_a_basis_needs_a_mean_and_past_means_that_are_kept() -> None:
    with pytest.raises(BadInput, match=r"--method\.stored 0"):
        build_by_flags(tarry.methods, "fedogd", projection="basis", stored=0)
    with pytest.raises(BadInput, match="the server keeps no past means"):
        build_by_flags(tarry.methods, "fedogd", projection="basis", privacy=True)
