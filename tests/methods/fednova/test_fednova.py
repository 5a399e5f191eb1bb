"""FedNova against its twin, and what it promises: steps that are not made everywhere pull the global nowhere."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tarry
from tarry.core.errors import BadInput
from tarry.core.optim import make_optimizer
from tarry.parts.variates import reach
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import batchnorm_net, random_clients
from tests.methods.fednova.reference import FedNova, coefficients, descend
from tests.reference.loop import Arrival, play
from tests.reference.match import Case, cases, few, trace
from tests.reference.problem import Problem
from tests.reference.quadratics import globals_of, pulling

some = settings(few, max_examples=10)


@dataclass(frozen=True)
class Repeated(Case):
    """All examples of a client are the same: a mini-batch is as good as all, and more of them are more steps."""

    @property
    def problem(self) -> Problem:
        plain = super().problem
        return replace(plain, data=[(np.repeat(x[:1], len(y), 0), np.repeat(y[:1], len(y))) for x, y in plain.data])


def events_of(method: Any, case: Repeated, *, epochs: int, batch: int, momentum: float) -> list[tarry.Event]:
    seen: list[tarry.Event] = []
    with tempfile.TemporaryDirectory() as folder:
        delay = trace(case, Path(folder) / "visits.csv") if case.lost else case.durations
        work: dict[str, Any] = {"epochs": epochs, "batch": batch, "lr": case.lr, "momentum": momentum}
        task = case.problem.task()
        tarry.run(
            method, task, dtype="float64", delay=delay, updates=case.updates, callbacks=[seen.append], time=1e3, **work
        )
    return seen


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize(("mu", "momentum"), [(0.0, 0.0), (0.0, 0.9), (2.0, 0.0), (2.0, 0.9)])
@some
@given(case=st.one_of(cases(), cases(losses=True)), epochs=st.integers(1, 2), batch=st.integers(1, 3))
def test_it_is_its_twin(weighting: str, mu: float, momentum: float, case: Case, epochs: int, batch: int) -> None:
    case = Repeated(**case.__dict__)
    steps = [epochs * ceil(n / batch) for n in case.sizes]
    how = {"lr": case.lr, "rho": momentum, "mu": mu}
    norms = [np.abs(coefficients(tau, **how)).sum() for tau in steps]
    sizes = case.sizes if weighting == "examples" else [1] * len(steps)
    twin = FedNova(case.problem.w0, sizes, norms)

    def train(m: int, w: Any) -> Any:
        return descend(case.problem, m, w, steps=steps[m], **how)

    expected = play(twin, train, case.durations, updates=case.updates, lost=case.lost)
    method = {"name": "fednova", "mu": mu, "weighting": weighting}
    seen = events_of(method, case, epochs=epochs, batch=batch, momentum=momentum)
    arrived = [Arrival(e.time, e.client, e.staleness, e.weights.numpy()) for e in seen if e.kind == "arrival"]
    assert [a[:3] for a in arrived] == [e[:3] for e in expected]
    for a, e in zip(arrived, expected, strict=True):
        np.testing.assert_allclose(a.w, e.w, rtol=1e-10, atol=1e-12)


# How far steps reach


@given(st.integers(1, 30), st.sampled_from([0.0, 0.3, 0.9, 0.99]), st.sampled_from([0.0, 0.01, 1.0, 30.0]))
@few
def test_reach_is_the_sum_of_the_coefficients(steps: int, rho: float, mu: float) -> None:
    """Those found by letting gradients be unit vectors; at μ = 30, where η μ > 1, signs change."""
    a = coefficients(steps, lr=0.05, rho=rho, mu=mu)
    got = reach(make_optimizer("sgd", lr=0.05, momentum=rho), steps, mu=mu)
    np.testing.assert_allclose(got, np.abs(a).sum(), rtol=1e-12)


@pytest.mark.parametrize("tau", [1, 2, 7, 50])
def test_reach_is_the_papers_formulas(tau: int) -> None:
    assert reach(make_optimizer("sgd", lr=0.1), tau) == tau
    rho, eta, mu = 0.9, 0.1, 2.0
    with_momentum = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    assert reach(make_optimizer("sgd", lr=eta, momentum=rho), tau) == pytest.approx(with_momentum, rel=1e-12)
    pulled = (1 - (1 - eta * mu) ** tau) / (eta * mu)
    assert reach(make_optimizer("sgd", lr=eta), tau, mu=mu) == pytest.approx(pulled, rel=1e-12)


# Collapses, and what normalizing is for

SETUP: dict[str, Any] = {"lr": 0.1, "rounds": 6, "steps": 5}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("mu", "other"), [(0.0, {"name": "fedavg"}), (0.7, {"name": "fedprox", "mu": 0.7})])
def test_with_as_many_steps_everywhere_it_is_fedavg_or_fedprox(mu: float, other: Any, momentum: float) -> None:
    ours = globals_of({"name": "fednova", "mu": mu}, pulling(), momentum=momentum, **SETUP)
    theirs = globals_of(other, pulling(), momentum=momentum, **SETUP)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    assert len(ours) == 6


def copies(numbers: list[int], places: list[float]) -> tarry.Task:
    """½ (w − b_k)², as so many equal examples: with a batch of one, as many steps an epoch."""
    task = pulling(np.ones((len(places), 1)), np.array(places)[:, None])
    data = [(x.repeat(n, 1), y.repeat(n)) for n, (x, y) in zip(numbers, task.clients, strict=True)]
    return replace(task, clients=data)


def test_a_client_that_makes_more_steps_pulls_no_harder() -> None:
    """Two clients at 0 and 1 that make 1 and 19 steps and weigh alike.

    On ½ (w − b)² a visit goes 1 − (1 − η)^τ of the way to b, so where either server comes to rest is known: FedAvg far
    over at the second client's; FedNova in the middle, but for how its later gradients are smaller.
    """
    task, eta = copies([1, 19], [0.0, 1.0]), 0.02
    work: dict[str, Any] = {"batch": 1, "epochs": 1, "lr": eta, "rounds": 60}
    few, many = eta, 1 - (1 - eta) ** 19
    far = globals_of({"name": "fedavg", "weighting": "uniform"}, task, **work)[-1][0]
    near = globals_of({"name": "fednova", "weighting": "uniform"}, task, **work)[-1][0]
    assert far == pytest.approx(many / (few + many), rel=1e-3)
    assert near == pytest.approx(many / 19 / (few + many / 19), rel=1e-3)
    assert abs(far - 0.5) > 0.4 > 8 * abs(near - 0.5)


def batchnorm_task() -> tarry.Task:
    """Clients of 4, 8 and 16 examples, and a model with running statistics."""
    sizes = (4, 8, 16)
    data = random_clients(sizes, 3, 2, seed=9, scales=sizes)
    module = batchnorm_net(3, 4, 2, seed=8)
    return tarry.Task("normed", model=module, loss=nn.functional.cross_entropy, clients=data, test=data[0])


def test_running_statistics_are_averaged_whatever_the_steps() -> None:
    """After the first round, whose clients train alike, they are FedAvg's; the weights are not."""
    work: dict[str, Any] = {"batch": 4, "epochs": 1, "lr": 0.1, "rounds": 1}
    ours, theirs = globals_of("fednova", batchnorm_task(), **work)[0], globals_of("fedavg", batchnorm_task(), **work)[0]
    np.testing.assert_allclose(ours[-8:], theirs[-8:], rtol=1e-13)
    assert np.abs(ours[:-8] - theirs[:-8]).max() > 1e-3


# What is rejected


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_an_optimizer_without_a_sum_of_gradients_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"optimizer='{name}': .*use optimizer='sgd'"):
        globals_of("fednova", pulling(), optimizer=name, **SETUP)


def test_its_clients_and_its_server_need_each_other() -> None:
    with pytest.raises(BadInput, match=r"local='fednova': .*use method='fednova'"):
        tarry.run("asgd", pulling(), local="fednova", **SETUP)
    with pytest.raises(BadInput, match=r"local='fedprox': .*leave out local"):
        tarry.run("fednova", pulling(), local="fedprox", **SETUP)


def test_a_pull_outwards_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--method\.mu -1\.0"):
        build_by_flags(tarry.methods, "fednova", mu=-1.0)
