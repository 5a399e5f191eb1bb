"""Local-only against its twin, and what it promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

import tarry
from tarry.build import plan
from tarry.core.errors import BadInput
from tarry.spec import Spec

from .fedavg import descend
from .localonly import LocalOnly
from .match import Case, cases, check, few

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
    made = plan(Spec.of({"method": METHOD, **settings, "lr": case.lr, "delay": case.durations, "time": 12.0}))
    executor = made.executor()
    sim = made.simulator(executor, [])
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
    torch.testing.assert_close(sim.server.answer, mean, rtol=1e-12, atol=1e-14)


def test_clients_that_contrast_with_their_previous_model_are_refused() -> None:
    with pytest.raises(BadInput, match=r"--local moon: .*leave out --local"):
        tarry.run("local-only", local="moon", clients=4, updates=4)
    with pytest.raises(BadInput, match=r"--reply local-only: .*leave out --reply"):
        tarry.run("moon", reply="local-only", clients=4, updates=4)
