"""FedAC against its twin, what is left of it without its parts, and what each part promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import ServerView
from tarry.core.tickets import Ticket, Update
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation
from tests.helpers.by_flags import build_by_flags
from tests.helpers.tensors import vec
from tests.methods.fedac.reference import FedAC
from tests.methods.fedbuff.reference import FedBuff
from tests.reference.match import Case, cases, check, few

some = settings(few, max_examples=8)

METHODS: list[dict[str, Any]] = [
    {"buffer": 2},
    {"buffer": 3, "eta": 0.01, "beta1": 0.9, "beta2": 0.0, "floor": 0.5},
    {"buffer": 2, "correction": False},
    {"buffer": 2, "adaptive": False, "eta": 0.7},
    {"buffer": 2, "eps": 0.3, "eta": 0.2},
    {"buffer": 1, "beta1": 0.0, "eta": 0.005},
]


def check_twin(case: Case, method: dict[str, Any], **more: Any) -> None:
    """A client that comes again before the first step has c_i − c for its whole gradient, and may go nowhere."""
    twin = FedAC(case.problem, steps=case.steps, lr=case.lr, **method)
    check({"name": "fedac", **method}, case, twin, train=twin.train, well_posed=lambda: twin.well_posed, **more)


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    check_twin(case, method)


@some
@given(case=cases(), limit=st.integers(1, 2))
def test_it_is_its_twin_when_not_all_train_at_once(case: Case, limit: int) -> None:
    check_twin(case, {"buffer": 2, "adaptive": False}, concurrency=limit)


BARE: dict[str, Any] = {"floor": 1.0, "correction": False, "adaptive": False, "beta1": 0.0}


@some
@given(cases(losses=True), st.sampled_from([0.3, 1.0]))
def test_without_its_parts_it_is_fedbuff_without_a_discount(case: Case, eta: float) -> None:
    bare = {"name": "fedac", "buffer": 3, "eta": eta, **BARE}
    check(bare, case, FedBuff(case.problem.w0, K=3, a=0.0, eta=eta))


# The parts, by hand

LAYOUT = Layout((Block("w", 0, 2, (2,), Kind.PARAM),))


@pytest.mark.parametrize(
    ("delta", "weight"),
    [((3.0, 0.0), 1.0), ((3.0, 3.0), 0.5**0.5), ((0.0, 5.0), 0.1), ((-1.0, 0.1), 0.1), ((0.0, 0.0), 1.0)],
)
def test_a_late_update_counts_by_its_cosine_with_the_servers_way(delta: tuple[float, float], weight: float) -> None:
    """The server went (2, 0) meanwhile; the floor is 0.1."""
    method = tarry.methods.build("fedac")
    now = ServerView(vec(3.0, 1.0), LAYOUT, 4, 1.0, 0, 2, 0, 0)
    update = Update(Ticket(0, 0, 0, 1, 0.0, vec(1.0, 1.0), vec(1.0, 1.0)), vec(*delta), 1, 1, 3)
    counted, _ = method.correct(update, None, now)
    assert counted.weight == pytest.approx(weight, rel=1e-12)
    fresh, _ = method.correct(update.replace(staleness=0), None, now)
    assert fresh.weight == 1.0


def test_the_first_step_goes_1_minus_beta1_squared_of_the_way() -> None:
    """m = (1 − β) Δ, so m̂ = β (1 − β) Δ + (1 − β) Δ; divided by √((1 − β2) Δ²) when adaptive."""
    now = ServerView(vec(1.0, 1.0), LAYOUT, 0, 1.0, 0, 2, 0, 0)
    update = Update(Ticket(-1, -1, -1, 0, 0.0, now.weights, now.weights), vec(0.5, -2.0), 1, 1, 0)
    for adaptive, goes in ((False, vec(0.5, -2.0)), (True, vec(1.0, -1.0) / (1 - 0.99) ** 0.5)):
        params = {"eta": 0.1, "beta1": 0.6, "beta2": 0.99, "adaptive": adaptive}
        step = tarry.methods.build("fedac", **params).step
        after, _ = step(update, step.init(now.weights), now)
        torch.testing.assert_close(after, now.weights + 0.1 * (1 - 0.36) * goes, rtol=1e-6, atol=0)


def test_weighing_all_alike_c_is_the_mean_of_what_clients_keep() -> None:
    """Whenever the buffer is empty; those who have not come keep 0."""
    case = Case(5, 2, 3, [4, 2, 3, 5], [[1.0], [1.5], [2.0], [3.5, 0.5]], 2, 0.05, 24, False)
    setup = {"delay": case.durations, "updates": 24, "dtype": "float64", "batch": "all", "lr": 0.05, "steps": 2}
    made = build_run(
        Spec.of({"method": {"name": "fedac", "buffer": 3, "floor": 1.0}, "task": case.problem.task(), **setup})
    )
    executor = Simulation(made).executor()
    sim, checked = Simulation(made).simulator(executor, []), [0]

    def look() -> None:
        state = sim.server.state["aggregate"]
        if state.sums.count == 0 and sim.server.version:
            kept = sim._memories["c_k"]
            torch.testing.assert_close(state.c, sum(kept.values()) / 4, rtol=1e-10, atol=1e-12)
            checked[0] += 1

    sim.run(look)
    executor.close()
    assert checked[0] >= 5


def test_the_correction_costs_a_model_more_each_way_and_five_on_the_server() -> None:
    case = Case(5, 2, 3, [4, 2, 3], [[1.0], [1.5], [2.0]], 2, 0.05, 30, False)
    setup: dict[str, Any] = {"delay": case.durations, "updates": 30, "dtype": "float64", "lr": 0.05}
    size = 8 * len(case.problem.w0)
    bare, full = (tarry.run({"name": "fedac", "buffer": 3, **p}, case.problem.task(), **setup) for p in (BARE, {}))
    assert bare.bytes_up == 30 * size
    assert full.bytes_up == 2 * bare.bytes_up
    assert size * 3 < full.peak_server_bytes - bare.peak_server_bytes <= size * 8  # v, c, changes; c's in flight


def test_without_the_correction_nothing_travels_along() -> None:
    method = tarry.methods.build("fedac", correction=False)
    assert method.aggregate.offer is None
    assert method.local == tarry.LocalRule()


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"buffer": 0}, "--method.buffer 0"),
        ({"eta": 0.0}, "--method.eta 0.0"),
        ({"beta1": 1.0}, "--method.beta1 1.0"),
        ({"beta2": -0.1}, "--method.beta2 -0.1"),
        ({"floor": 0.0}, "--method.floor 0.0"),
        ({"floor": 1.5}, "--method.floor 1.5"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "fedac", **params)
