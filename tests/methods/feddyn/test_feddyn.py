"""FedDyn against its twin, and what it promises: it stands still where the mean loss does, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tarry
from tarry.core.errors import BadInput
from tests.helpers.by_flags import build_by_flags
from tests.methods.feddyn.reference import FedDyn
from tests.reference.match import Case, cases, check, few
from tests.reference.quadratics import PLACE, STRENGTH, globals_of, memories, minimizer, pulling, rows

some = settings(few, max_examples=15)


@pytest.mark.parametrize("alpha", [0.01, 1.0, 5.0])
@some
@given(case=st.one_of(cases(), cases(losses=True)), limit=st.sampled_from([None, 1, 2]))
def test_it_is_its_twin(alpha: float, case: Case, limit: int | None) -> None:
    """All at once or few of them a round; who is lost keeps its gradient."""
    twin = FedDyn(case.problem, steps=case.steps, lr=case.lr, alpha=alpha)
    check({"name": "feddyn", "alpha": alpha}, case, twin, train=twin.train, concurrency=limit)


WORK: dict[str, Any] = {"lr": 0.4, "steps": 5}


@pytest.mark.parametrize("alpha", [0.3, 1.0])
@pytest.mark.parametrize("limit", [None, 2])
def test_with_clients_that_pull_apart_it_finds_the_minimum_where_fedavg_does_not(
    alpha: float, limit: int | None
) -> None:
    work = {**WORK, "rounds": 80, "concurrency": limit}
    wrong = globals_of({"name": "fedavg", "weighting": "uniform"}, pulling(), **{**work, "concurrency": None})[-1]
    assert np.abs(wrong - minimizer()).max() > 0.5
    np.testing.assert_allclose(
        globals_of({"name": "feddyn", "alpha": alpha}, pulling(), **work)[-1], minimizer(), rtol=1e-4
    )


def test_where_it_stands_still_every_client_remembers_its_gradient_there() -> None:
    """The first-order condition: λ_k = ∇F_k(W), and they add up to h = 0."""
    last: list[Any] = []

    def look(sim: Any) -> None:
        last[:] = [sim.server.weights, rows(sim, "lambda", 3), sim.server.state["aggregate"].past]

    memories({"name": "feddyn", "alpha": 0.3}, pulling(), look, **WORK, rounds=80)
    w, lam, past = last
    for k in range(3):
        np.testing.assert_allclose(lam[k].numpy(), STRENGTH[k] * (w.numpy() - PLACE[k]), rtol=1e-5, atol=1e-6)
    assert past.abs().max() < 1e-5 < max(x.abs().max() for x in lam)


@pytest.mark.parametrize("more", [{}, {"concurrency": 2, "failure_rate": 0.3}], ids=["all", "some"])
def test_h_is_the_mean_of_what_all_clients_keep(more: dict[str, Any]) -> None:
    seen = [0]

    def look(sim: Any) -> None:
        h = -0.3 * sim.server.state["aggregate"].past
        torch.testing.assert_close(sum(rows(sim, "lambda", 3)) / 3, h, rtol=1e-9, atol=1e-12)
        seen[0] += 1

    memories({"name": "feddyn", "alpha": 0.3}, pulling(), look, **WORK, rounds=12, **more)
    assert seen[0] >= 10


def test_without_alpha_clients_are_fedavgs_and_the_server_never_forgets() -> None:
    """α → 0, one full step, clients all alike: W ← W + Δ + all Δ so far. The clients' own part is FedAvg's."""
    task = pulling(STRENGTH[[0, 0, 0]], PLACE[[1, 1, 1]])
    work: dict[str, Any] = {"lr": 0.1, "steps": 1, "rounds": 12}
    w, past, expected = np.zeros(2), np.zeros(2), []
    for _ in range(12):
        delta = -0.1 * STRENGTH[0] * (w - PLACE[1])
        past = past + delta
        w = w + delta + past
        expected.append(w)
    ours = globals_of({"name": "feddyn", "alpha": 1e-12}, task, **work)
    np.testing.assert_allclose(ours, expected, rtol=1e-9)
    first = globals_of("fedavg", task, **work)[0]
    np.testing.assert_allclose(ours[0], 2 * first, rtol=1e-9)


@pytest.mark.parametrize(("limit", "times"), [(3, 2.0), (2, 5 / 3), (1, 4 / 3)])
def test_the_first_step_goes_beyond_the_mean_by_the_share_of_clients_that_came(limit: int, times: float) -> None:
    """h = −α (|S|/N) mean Δ, so W = mean w_k + (|S|/N) mean Δ."""
    work: dict[str, Any] = {**WORK, "rounds": 1, "concurrency": limit, "seed": 3}
    seen = memories({"name": "feddyn", "alpha": 1e-12}, pulling(), lambda _: None, **work)
    plain = memories({"name": "fedavg", "weighting": "uniform"}, pulling(), lambda _: None, **work)
    torch.testing.assert_close(seen.server.weights, times * plain.server.weights, rtol=1e-9, atol=0)


def test_it_sends_no_more_than_fedavg_and_keeps_two_models() -> None:
    sim = memories("feddyn", pulling(), lambda _: None, lr=0.1, steps=2, rounds=3)
    model = 2 * 8
    assert (sim.engine.bytes_up, sim.engine.bytes_down) == (9 * model, 9 * model)
    assert sim.server.meter.peak <= (1 + 1 + 2) * model  # W, the one before for those still out, h and a sum


def test_clients_and_server_need_each_other() -> None:
    with pytest.raises(BadInput, match=r"local='feddyn': .*use method='feddyn'"):
        tarry.run("asgd", pulling(), local="feddyn", **WORK)
    with pytest.raises(BadInput, match=r"local='fedprox': .*leave out local"):
        tarry.run("feddyn", pulling(), local="fedprox", **WORK)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_alpha_is_above_0(alpha: float) -> None:
    with pytest.raises(BadInput, match=r"--method\.alpha"):
        build_by_flags(tarry.methods, "feddyn", alpha=alpha)
