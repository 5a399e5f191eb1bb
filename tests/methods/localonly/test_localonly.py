"""Local-only against its twin, and what it promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation
from tests.helpers.interrupted import interrupted_run
from tests.helpers.models import random_clients
from tests.methods.fedavg.reference import descend
from tests.methods.localonly.reference import LocalOnly
from tests.reference.match import Case, cases, check, few

METHOD = {"name": "local-only"}


@few
@given(cases())
def test_local_only_is_its_twin(case: Case) -> None:
    check(METHOD, case, LocalOnly(case.problem.w0, len(case.sizes)))


@few
@given(cases(losses=True))
def test_who_is_lost_begins_again_where_it_was(case: Case) -> None:
    check(METHOD, case, LocalOnly(case.problem.w0, len(case.sizes)))


@few
@given(cases())
def test_who_comes_late_begins_from_the_first_weights_all_the_same(case: Case) -> None:
    check(METHOD, case, LocalOnly(case.problem.w0, len(case.sizes)), concurrency=1)


CASE = Case(7, 3, 2, [4, 5, 6], [[1.0], [1.5, 1.0], [2.5]], 2, 0.05, 12, False)


def test_every_client_is_plain_training_alone() -> None:
    """After its n-th visit a client is where n visits in a row lead; the others' data never matter."""
    case, problem = CASE, CASE.problem
    settings: dict[str, Any] = {"task": problem.task(), "dtype": "float64", "batch": "all", "steps": case.steps}
    made = build_run(Spec.of({"method": METHOD, **settings, "lr": case.lr, "delay": case.durations, "time": 12.0}))
    executor = Simulation(made).executor()
    sim = Simulation(made).simulator(executor, [])
    sim.run()
    executor.close()
    ends = {t.client: t.sent for t in sim.server.tickets.values()}
    assert set(ends) == {0, 1, 2}
    for m, sent in ends.items():
        visits = sim.server.visits[m] - 1  # the last is under way
        alone = descend(problem, m, problem.w0, steps=case.steps * visits, lr=case.lr)
        np.testing.assert_allclose(sent.numpy(), alone, rtol=1e-11, atol=1e-13)
        assert visits >= 4
    mean = torch.stack([ends[m] for m in range(3)]).mean(0)
    torch.testing.assert_close(sim.server.output_weights, mean, rtol=1e-12, atol=1e-14)


def test_clients_that_contrast_with_their_previous_model_are_refused() -> None:
    with pytest.raises(BadInput, match=r"local='moon': .*leave out local"):
        tarry.run("local-only", local="moon", clients=4, updates=4)
    with pytest.raises(BadInput, match=r"reply='local-only': .*leave out reply"):
        tarry.run("moon", reply="local-only", clients=4, updates=4)


def test_with_everybodys_models_in_a_file_it_is_the_same_run_and_comes_back_after_a_kill(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"task": "digits", "time": 1500.0, "clients": 4, "concurrency": 3, "epochs": 1}
    settings |= {"personalize": 1, "failure_rate": 0.2, "seed": 3}
    whole = tarry.run("local-only", **settings)
    in_file: dict[str, Any] = {**settings, "cache_limit": 1e-3, "checkpoint_every": 1e-6}
    interrupted_run(tmp_path / "killed", lambda e: e.updates == 2 * whole.updates // 3, "local-only", **in_file)
    assert list((tmp_path / "killed" / "cache").glob("*.rows"))
    back = tarry.resume(tmp_path / "killed")
    assert back.weights_sha256 == whole.weights_sha256
    assert back.personalization == whole.personalization


@pytest.mark.parametrize("concurrency", [2, 3])
def test_statistics_are_the_mean_of_everybodys_latest_and_clients_go_on_from_their_own(concurrency: int) -> None:
    """Of who has not been heard of, the first ones."""
    data = random_clients([8] * 3, 3, 2, seed=0, scales=(0.1, 1.0, 10.0))
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    task = tarry.Task("normed", model=net, loss=nn.functional.cross_entropy, clients=data, metrics=["loss"])
    first = torch.cat([torch.zeros(4), torch.ones(4)]).double()
    latest = dict.fromkeys(range(3), first)

    def look(update: tarry.Update, view: tarry.ServerView) -> tarry.Update:
        torch.testing.assert_close(view.weights[-8:], sum(latest.values()) / 3, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(update.ticket.sent[-8:], latest[update.ticket.client], rtol=1e-12, atol=0)
        latest[update.ticket.client] = update.local[-8:]
        return update

    method = replace(tarry.methods.build("local-only"), correct=tarry.stateless(look))
    setup: dict[str, Any] = {"delay": [[1.0], [1.5], [2.0]], "updates": 15, "lr_decay": 0.9}
    tarry.run(method, task, dtype="float64", concurrency=concurrency, **setup)
    assert all(not torch.equal(own, first) for own in latest.values())
