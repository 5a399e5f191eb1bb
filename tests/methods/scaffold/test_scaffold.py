"""SCAFFOLD against its twin, and what it promises: c is the mean of all c_k, and many local steps do no harm."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tarry
from tarry.core.errors import BadInput
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import InnerProduct, half_mean_square
from tests.methods.fednova.reference import coefficients
from tests.methods.scaffold.reference import Scaffold
from tests.reference.match import Case, cases, check, events_of, few
from tests.reference.quadratics import PLACE, STRENGTH, globals_of, memories, minimizer, pulling, rows

some = settings(few, max_examples=10)

METHODS: list[dict[str, Any]] = [
    {},
    {"option": "I"},
    {"eta": 0.7},
    {"weighting": "examples"},
    {"weighting": "examples", "option": "I", "eta": 1.3},
]


def twin_of(method: dict[str, Any], case: Case, **more: Any) -> Scaffold:
    sizes = case.sizes if method.get("weighting") == "examples" else [1] * len(case.sizes)
    eta_g, option = method.get("eta", 1.0), method.get("option", "II")
    return Scaffold(case.problem, sizes, steps=case.steps, lr=case.lr, eta_g=eta_g, option=option, **more)


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)), limit=st.sampled_from([None, 1, 2]))
def test_it_is_its_twin(method: dict[str, Any], case: Case, limit: int | None) -> None:
    """All at once or few of them a round; who is lost keeps its c_k."""
    twin = twin_of(method, case)
    check({"name": "scaffold", **method}, case, twin, train=twin.train, concurrency=limit)


@pytest.mark.parametrize("option", ["I", "II"])
@some
@given(case=cases())
def test_the_rate_is_that_of_the_visit(option: str, case: Case) -> None:
    twin = twin_of({"option": option}, case, decay=0.8)
    seen = [
        e.weights.numpy() for e in events_of({"name": "scaffold", "option": option}, case, lr_decay=0.8) if e.stepped
    ]
    for w in seen:
        for k in range(len(case.sizes)):
            twin.start(k)
        for k in range(len(case.sizes)):
            twin.receive(k, twin.train(k, twin.w))
        np.testing.assert_allclose(w, twin.w, rtol=1e-10, atol=1e-12)


# c and c_k

LONG: dict[str, Any] = {"lr": 0.4, "steps": 5}
OFTEN: dict[str, Any] = {**LONG, "rounds": 12}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("more", [{}, {"concurrency": 2, "failure_rate": 0.3}], ids=["all", "some"])
def test_the_sum_of_all_c_k_is_n_times_c(option: str, momentum: float, more: dict[str, Any]) -> None:
    seen = [0]

    def look(sim: Any) -> None:
        c, c_k = sim.server.state["aggregate"].c, rows(sim, "c_k", 3)
        torch.testing.assert_close(sum(c_k), 3 * c.expand(2), rtol=1e-10, atol=1e-12)
        seen[0] += bool(c.abs().sum() > 0)

    memories({"name": "scaffold", "option": option}, pulling(), look, momentum=momentum, **OFTEN, **more)
    assert seen[0] >= 10


SIZES, PULL, AIM = np.array([1, 6, 3]), np.array([1.0, 0.3, 2.0]), np.array([4.0, -3.0, 1.0])


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("concurrency", [1, 2, 3])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_it_comes_to_rest_where_the_weighted_sum_of_gradients_is_0(
    weighting: str, concurrency: int, option: str
) -> None:
    """½ s_k (w − b_k)² of clients with 1, 6 and 3 examples, however few of them make a round."""
    x = [torch.full((n, 1), s, dtype=torch.float64).sqrt() for n, s in zip(SIZES, PULL, strict=True)]
    data = [(x_k, x_k[:, 0] * b) for x_k, b in zip(x, AIM, strict=True)]
    loss = tarry.Task("r", model=InnerProduct([0.0]), loss=half_mean_square, clients=data, metrics=["loss"])
    method = {"name": "scaffold", "weighting": weighting, "option": option}
    w = globals_of(method, loss, concurrency=concurrency, lr=0.1, steps=4, rounds=150)[-1]
    mass = PULL * (SIZES if weighting == "examples" else 1)
    np.testing.assert_allclose(w, [(mass * AIM).sum() / mass.sum()], rtol=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_option_ii_makes_c_k_the_mean_of_the_visits_gradients(rho: float) -> None:
    """By hand, over two rounds: gradients weigh as much as the steps let them."""
    kept: list[Any] = []
    memories("scaffold", pulling(), lambda sim: kept.append(rows(sim, "c_k", 3)), **LONG, rounds=2, momentum=rho)
    w, c, c_k = np.zeros(2), np.zeros(2), np.zeros((3, 2))
    a = coefficients(5, lr=0.4, rho=rho)
    for after in kept:
        ends = []
        for k in range(3):
            y, v, gradients = w, np.zeros(2), []
            for _ in range(5):
                gradients.append(STRENGTH[k] * (y - PLACE[k]))
                v = rho * v + gradients[-1] - c_k[k] + c
                y = y - 0.4 * v
            ends.append(y)
            c_k[k] = a @ np.array(gradients) / a.sum()
        np.testing.assert_allclose(torch.stack(list(after)).numpy(), c_k, rtol=1e-10)
        w, c = np.mean(ends, axis=0), c_k.mean(axis=0)


def regression(n: int) -> tarry.Task:
    g = torch.Generator().manual_seed(1)
    data = [(torch.randn(n, 2, generator=g).double(), torch.randn(n, generator=g).double()) for _ in range(2)]
    return tarry.Task(
        "r", model=pulling().model, loss=lambda o, y: 0.5 * ((o - y) ** 2).mean(), clients=data, metrics=["loss"]
    )


def slope(w: Any, x: Any, y: Any) -> Any:
    return x.T @ (x @ w - y) / len(y)


@pytest.mark.parametrize("epochs", [1, 3])
def test_option_i_is_the_gradient_of_all_the_data_however_long_the_visit(epochs: int) -> None:
    """Five examples in batches of two: the last batch counts half."""
    task, at, kept = regression(5), list[Any](), list[Any]()

    def look(sim: Any) -> None:
        kept.append(rows(sim, "c_k", 2))
        at.append(sim.server.weights)

    memories({"name": "scaffold", "option": "I"}, task, look, lr=0.1, epochs=epochs, batch=2, rounds=3)
    starts = [torch.zeros(2, dtype=torch.float64), *at]
    for start, c_k in zip(starts, kept, strict=False):
        for c, (x, y) in zip(c_k, task.clients, strict=True):
            torch.testing.assert_close(c, slope(start, x, y), rtol=1e-12, atol=1e-14)
    assert len(kept) == 3


def test_option_i_of_a_short_visit_is_over_the_examples_it_saw() -> None:
    task, kept = regression(6), list[Any]()
    memories(
        {"name": "scaffold", "option": "I"}, task, lambda s: kept.append(rows(s, "c_k", 2)), steps=1, batch=2, rounds=1
    )
    for c, (x, y) in zip(kept[0], task.clients, strict=True):
        pairs = [slope(torch.zeros(2).double(), x[list(p)], y[list(p)]) for p in combinations(range(6), 2)]
        assert sum(torch.allclose(c, g, rtol=1e-10, atol=0) for g in pairs) == 1


# What the correction is for


@pytest.mark.parametrize("more", [{}, {"option": "I"}], ids=["II", "I"])
@pytest.mark.parametrize("limit", [None, 2])
def test_with_clients_that_pull_apart_it_finds_the_minimum_where_fedavg_does_not(more: Any, limit: int | None) -> None:
    work = {**LONG, "rounds": 60, "concurrency": limit}
    wrong = globals_of({"name": "fedavg", "weighting": "uniform"}, pulling(), **{**work, "concurrency": None})[-1]
    assert np.abs(wrong - minimizer()).max() > 0.5
    np.testing.assert_allclose(globals_of({"name": "scaffold", **more}, pulling(), **work)[-1], minimizer(), rtol=1e-4)


@pytest.mark.parametrize("option", ["I", "II"])
def test_of_one_full_step_it_is_fedavg(option: str) -> None:
    """Everybody's corrections add up to 0, whether data differ or not."""
    work: dict[str, Any] = {"lr": 0.1, "steps": 1, "rounds": 10}
    ours = globals_of({"name": "scaffold", "option": option}, pulling(), **work)
    theirs = globals_of({"name": "fedavg", "weighting": "uniform"}, pulling(), **work)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_of_clients_that_are_all_alike_it_is_fedavg_whatever_the_steps() -> None:
    task = pulling(STRENGTH[[0, 0, 0]], PLACE[[1, 1, 1]])
    ours, theirs = globals_of("scaffold", task, **OFTEN), globals_of("fedavg", task, **OFTEN)
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


# Costs, optimizers, crosses


def test_a_round_trip_is_four_models_and_the_server_keeps_three() -> None:
    """Three rounds of three: c is one number at the first hand-out. Kept: c, and two sums while a round is open."""
    sim = memories("scaffold", pulling(), lambda _: None, lr=0.1, steps=2, rounds=3)
    model = 2 * 8
    assert sim.engine.bytes_up == 9 * 2 * model
    assert sim.engine.bytes_down == 3 * (model + 8) + 6 * 2 * model
    assert sim.server.meter.peak <= (1 + 1 + 3) * model  # W, the one before for those still out, and these


def test_adam_is_refused_where_its_displacement_would_be_read() -> None:
    with pytest.raises(BadInput, match=r"optimizer='adam': .*use optimizer='sgd'"):
        globals_of("scaffold", pulling(), optimizer="adam", **OFTEN)
    moved = globals_of({"name": "scaffold", "option": "I"}, pulling(), optimizer="adam", **OFTEN)[-1]
    assert np.abs(moved).min() > 0.1


def test_a_server_that_keeps_no_c_is_refused() -> None:
    with pytest.raises(BadInput, match=r"local='scaffold': .*need 'c' .*use method='scaffold'"):
        tarry.run("asgd", pulling(), local="scaffold", **OFTEN)
    with pytest.raises(BadInput, match=r"local='fedprox': .*leave out local"):
        tarry.run("scaffold", pulling(), local="fedprox", **OFTEN)


def test_a_server_that_stands_still_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--method\.eta 0\.0"):
        build_by_flags(tarry.methods, "scaffold", eta=0.0)
