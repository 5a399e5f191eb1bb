"""AsyncCurve against its twin, client and server, and where it is another method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tarry
from tarry.core import rng
from tarry.core.rng import Stream
from tests.methods.asgd.reference import asgd
from tests.methods.asynccurve.reference import Client, Server
from tests.methods.orthocorrect.reference import orthocorrect
from tests.methods.orthocorrect.reference_orthodyn import OrthoDyn
from tests.reference.loop import Arrival, play
from tests.reference.match import Case, cases, few
from tests.reference.problem import Problem, Vec

#: the library's names of what the twin's client and server call by other names
LOCAL = ("lr", "control_lr", "optimizer", "beta1", "beta2", "eps", "rho", "proximal", "mu", "sigma", "gamma")
REMOTE = ("eta", "low", "cycle", "penalty", "participation", "swa", "periodic", "moments")


fewer = settings(few, max_examples=7)


def drawn_lambda(m: int, visit: int, k: int) -> float:
    """As parts.curve documents it; the run's seed is 0."""
    return rng.uniform(rng.key(0, Stream.LOCAL, m, visit, 1, k))


def fedasync(delta: Vec, old: Vec, new: Vec) -> Vec:
    return delta + (new - old)


CORRECTIONS = {
    "orthograd": orthocorrect(0.0, 0.0),
    "orthopos": orthocorrect(1.0, 0.0),
    "orthostrict": orthocorrect(0.0, 1.0),
    "asgd": asgd,
    "fedasync": fedasync,
}


@dataclass(frozen=True)
class Setting:
    """A case, and how its clients go through their data."""

    case: Case
    epochs: int
    batch: int | str = "all"

    @property
    def problem(self) -> Problem:
        """With small batches, a client's examples are all the same one, so that every batch is its whole data.

        Nobody is blind: Adam makes steps of rounding where a gradient should be 0.
        """
        problem = replace(self.case, blind=False).problem
        if self.batch == "all":
            return problem
        data = [(np.repeat(x[:1], len(y), axis=0), np.repeat(y[:1], len(y))) for x, y in problem.data]
        return Problem(problem.p, problem.h, data, problem.w0)

    @property
    def n_batches(self) -> list[int]:
        return [1 if self.batch == "all" else -(-n // int(self.batch)) for n in self.case.sizes]


def run_both(setting: Setting, **asked: Any) -> None:
    """Every arrival's weights, and the answer, are the twin's."""
    case, problem = setting.case, setting.problem
    seen: list[tarry.Event] = []
    result = tarry.run(
        {"name": "asynccurve", **asked},
        problem.task(),
        dtype="float64",
        batch=setting.batch,
        epochs=setting.epochs,
        delay=case.durations,
        updates=case.updates,
        time=1000.0,
        callbacks=[seen.append],
    )
    shape, n = asked.get("curve", "bezier"), len(case.sizes)
    local = {k: asked[k] for k in LOCAL if k in asked}
    if "lr" in asked and "control_lr" not in asked:
        local["control_lr"] = asked["lr"] / 10
    client = Client(problem, setting.epochs, drawn_lambda, setting.n_batches, shape=shape, **local)
    statistic, switch = asked.get("statistic", "agreement"), asked.get("switch", 0.5)
    dyn = OrthoDyn(statistic, clients=n, updates=case.updates, switch=switch, middle=0.0, smooth=0.95)
    name = asked.get("correction", "orthodyn")
    correct = dyn.correct if name == "orthodyn" else partial(corrected, CORRECTIONS[name])
    remote = {k: asked[k] for k in REMOTE if k in asked}
    server = Server(problem.w0, n, case.updates, correct, shape=shape, **remote)
    expected = play(server, client.train, case.durations, updates=case.updates)  # type: ignore[arg-type]
    assume(dyn.well_posed())
    arrived = [Arrival(e.time, e.client, e.staleness, e.weights.numpy()) for e in seen if e.kind == "arrival"]
    assert [a[:3] for a in arrived] == [e[:3] for e in expected]
    for number, (a, e) in enumerate(zip(arrived, expected, strict=True)):
        np.testing.assert_allclose(a.w, e.w, rtol=1e-10, atol=1e-10, err_msg=f"global weights after arrival {number}")
    assert result.weights is not None
    np.testing.assert_allclose(result.weights.numpy(), server.answer, rtol=1e-10, atol=1e-10)


def corrected(correction: Callable[[Vec, Vec, Vec], Vec], m: int, delta: Vec, old: Vec, new: Vec) -> Vec:
    return correction(delta, old, new)


@fewer
@given(cases(wide=True))
def test_asynccurve_at_its_defaults_is_its_twin(case: Case) -> None:
    run_both(Setting(case, epochs=case.steps))


VARIANTS: list[dict[str, Any]] = [
    {"proximal": "l2", "mu": 0.5, "optimizer": "sgd", "lr": 0.05, "gamma": 0.5, "swa": 0.3, "cycle": 2, "periodic": 3},
    {"proximal": "none", "optimizer": "asam", "rho": 0.3, "lr": 0.01, "gamma": 0.0, "penalty": False, "low": 1.0},
    {"optimizer": "asam", "lr": 0.02, "mu": 2.0, "sigma": 0.5, "curve": "printed", "swa": 0.0, "cycle": 3, "low": 0.0},
    {"curve": "line", "moments": False, "swa": 1.0, "eta": 0.9, "lr": 0.05, "mu": 3.0, "sigma": 4.0},
    {"correction": "orthograd", "lr": 0.03, "control_lr": 0.03, "moments": False, "gamma": 0.5, "cycle": 1},
    {"correction": "orthopos", "lr": 0.02, "control_lr": 0.05, "eta": 2.0, "swa": 0.5, "periodic": 1, "cycle": 2},
    {"correction": "fedasync", "lr": 0.02, "control_lr": 0.05, "curve": "printed", "gamma": 0.3, "penalty": False},
    {"correction": "asgd", "optimizer": "sgd", "lr": 0.05, "control_lr": 0.1, "gamma": 0.0},
    {"statistic": "progress", "switch": 0.3, "lr": 0.02, "control_lr": 0.05},
    {"participation": "since-last", "lr": 0.02, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
]


@pytest.mark.parametrize("asked", VARIANTS, ids=lambda v: "-".join(str(x) for x in v.values()))
@fewer
@given(case=cases(wide=True))
def test_asynccurve_is_its_twin_in_its_variants(asked: dict[str, Any], case: Case) -> None:
    run_both(Setting(case, epochs=case.steps), **asked)


@fewer
@given(cases(wide=True), st.sampled_from([1, 2]), st.sampled_from(["adam", "asam"]))
def test_asynccurve_is_its_twin_with_several_batches_an_epoch(case: Case, batch: int, solver: str) -> None:
    """Adam's moments last over the batches of an epoch, the control's begin anew with each; the shift is shared out."""
    run_both(Setting(case, epochs=2, batch=batch), optimizer=solver, lr=0.02, control_lr=0.02, swa=0.5, cycle=2)


ENDPOINTS = {"orthograd": 0.4, "orthopos": 0.3, "orthostrict": 0.4}


@pytest.mark.parametrize("name", list(ENDPOINTS))
def test_asynccurve_with_nothing_of_its_own_is_the_endpoint_correction(name: str) -> None:
    """A straight way, no penalty, constant η, no average, plain SGD at the run's rate, nothing that holds clients."""
    bare = {
        "name": "asynccurve",
        "correction": name,
        "eta": ENDPOINTS[name],
        "curve": "line",
        "penalty": False,
        "low": 1.0,
        "swa": 1.0,
        "moments": False,
        "optimizer": "sgd",
        "lr": 0.05,
        "proximal": "none",
    }
    trajectories = []
    for method in (bare, {"name": name, "eta": ENDPOINTS[name]}):
        seen: list[Tensor] = []
        tarry.run(
            method,
            Problem.draw(4, p=3, h=2, sizes=[6, 5, 9]).task(),
            dtype="float64",
            lr=0.05,
            batch=2,
            epochs=2,
            delay=[[1.0], [1.5], [2.0, 0.5]],
            updates=25,
            callbacks=[lambda e, seen=seen: seen.append(e.weights)],  # type: ignore[misc]
        )
        trajectories.append(seen)
    torch.testing.assert_close(*trajectories, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("swa", [0.5, 0.75])
def test_averaging_begins_at_the_same_step_whether_updates_or_rounds_are_the_budget(swa: float) -> None:
    """Each arrival is a step, so that 12 updates are 12 rounds."""
    method = {"name": "asynccurve", "cycle": 1, "swa": swa, "correction": "asgd"}
    settings: dict[str, Any] = {"clients": 2, "steps": 1, "delay": [1.0, 1.5]}
    by_updates, by_rounds = (tarry.run(method, "digits", **settings, **{b: 12}) for b in ("updates", "rounds"))
    assert by_updates.updates == by_rounds.updates == 12
    assert by_updates.weights_sha256 == by_rounds.weights_sha256
