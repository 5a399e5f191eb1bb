"""MIFA against its twins, where it is FedAvg and Fed-OGD without projections, whom it waits for, and what it keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tarry
from tarry.core.errors import BadInput
from tests.helpers.by_flags import build_by_flags
from tests.helpers.events import hand_outs
from tests.helpers.interrupted import interrupted_run
from tests.helpers.models import random_clients
from tests.methods.fedavg.reference import descend
from tests.methods.mifa.reference import MIFA, Train, algorithm_1
from tests.reference.clock import agree, following, play
from tests.reference.loop import pick_all
from tests.reference.match import Case, cases, events_of, few
from tests.reference.problem import Vec

some = settings(few, max_examples=12)


def training(case: Case) -> Train:
    return lambda i, w, eta: descend(case.problem, i, w, steps=case.steps, lr=eta)


def check(method: dict[str, Any], case: Case, *, concurrency: int | None = None, decay: float = 1.0) -> None:
    """The library and the twin agree on every step and hand-out: when, who, and the global weights."""
    problem = case.problem
    seen = events_of({"name": "mifa", **method}, case, concurrency=concurrency, lr_decay=decay)

    how = {"wait": not method.get("no_wait", False), "epoch": method.get("epoch", float("inf"))}
    server, train = MIFA(problem.w0, len(case.sizes), eta=case.lr, decay=decay, **how), training(case)
    drawn = following(seen) if concurrency else pick_all

    def gradient(i: int) -> Vec:
        return (server.w - train(i, server.w, server.eta)) / server.eta

    def pick(now: float, idle: list[int]) -> list[int]:
        return drawn(now, server.candidates(idle))

    agree(seen, *play(server, gradient, case.durations, updates=case.updates, pick=pick, lost=case.lost))


METHODS: list[dict[str, Any]] = [{}, {"no_wait": True}, {"epoch": 1.5}, {"no_wait": True, "epoch": 1.0}]


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    check(method, case)


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)), limit=st.integers(1, 2))
def test_it_is_its_twin_when_not_all_train_at_once(method: dict[str, Any], case: Case, limit: int) -> None:
    check(method, case, concurrency=limit)


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=cases(losses=True))
def test_at_a_rate_that_falls_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    check(method, case, decay=0.6)


@some
@given(case=cases(), data=st.data(), wait=st.booleans(), decay=st.sampled_from([1.0, 0.5]))
def test_with_clients_that_come_and_go_it_is_algorithm_1(
    case: Case, data: st.DataObject, wait: bool, decay: float
) -> None:
    """Rounds of one second, in each of which some are there; all in the first for a server that waits for them."""
    n = len(case.sizes)
    rounds = data.draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1), min_size=4, max_size=8))
    rounds = [set(range(n)), *rounds] if wait else rounds
    availability = {str(i): [[float(t), t + 1.0] for t, A in enumerate(rounds) if i in A] for i in range(n)}
    all_in_time = replace(case, durations=[[1.0]] * n, updates=sum(map(len, rounds)) + 1)
    seen = events_of({"name": "mifa", "no_wait": not wait}, all_in_time, availability=availability, lr_decay=decay)
    expected = algorithm_1(case.problem.w0, n, rounds, training(case), eta=case.lr, decay=decay)
    steps = [e for e in seen if e.kind == "step"]
    assert [e.time for e in steps] == [t + 1.0 for t in range(len(rounds))]
    for e, w in zip(steps, expected, strict=True):
        np.testing.assert_allclose(e.weights.numpy(), w, rtol=1e-10, atol=1e-12)


# Where it is another method


def globals_of(method: Any, case: Case, **more: Any) -> list[Vec]:
    """The weights after every step."""
    weights: dict[int, Vec] = {}
    for e in events_of(method, case, **more):
        weights.setdefault(e.version, e.weights.numpy())
    return list(weights.values())


@pytest.mark.parametrize("params", [{}, {"no_wait": True}], ids=str)
@some
@given(case=cases())
def test_with_everybody_present_it_is_fedavg(params: dict[str, Any], case: Case) -> None:
    """Weighing all alike; the rounds that end within a case's updates, the last perhaps not."""
    whole = replace(case, updates=4 * len(case.sizes) + 1)
    ours, theirs = (
        globals_of(m, whole) for m in ({"name": "mifa", **params}, {"name": "fedavg", "weighting": "uniform"})
    )
    assert len(ours) == len(theirs) == 5
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@some
@given(case=cases(losses=True), epoch=st.sampled_from([0.5, 1.5, 2.0]), decay=st.sampled_from([1.0, 0.7]))
def test_in_epochs_it_is_fedogd_without_projections_over_all_clients(case: Case, epoch: float, decay: float) -> None:
    fedogd = {"name": "fedogd", "projection": "never", "weighting": "clients", "eta": 1.0, "epoch": epoch}
    ours = globals_of({"name": "mifa", "no_wait": True, "epoch": epoch}, case, lr_decay=decay)
    np.testing.assert_allclose(ours, globals_of(fedogd, case, lr_decay=decay), rtol=1e-10, atol=1e-12)


# Whom it waits for


CASE = Case(5, 2, 2, [3, 5, 4, 2], [[1.0], [2.0], [1.0], [3.0]], 2, 0.05, 60, False)


def test_the_first_rounds_are_of_clients_that_have_not_been_seen() -> None:
    """Two at a time of four: two rounds of two, both from the first weights; then the first step."""
    seen = events_of("mifa", CASE, concurrency=2)
    first = next(i for i, e in enumerate(seen) if e.kind == "step")
    handed = [e for e in seen[:first] if e.kind == "hand_out"]
    assert sorted(e.client for e in handed) == [0, 1, 2, 3]
    assert len({e.time for e in handed}) == 2
    assert all(np.array_equal(e.weights.numpy(), CASE.problem.w0) for e in seen[:first])
    later = [e.client for e in seen[first:] if e.kind == "hand_out"]
    assert len(later) > 10, "then anybody is drawn again"


def test_nothing_moves_before_somebody_who_comes_late_has_reported() -> None:
    """Client 2 is there from 7 s on; who has reported waits, and is handed nothing meanwhile."""
    seen = events_of("mifa", CASE, availability={"2": [[7.0, 1e9]]})
    assert hand_outs(seen)[:4] == [(0.0, 0), (0.0, 1), (0.0, 3), (7.0, 2)]
    assert next(e.time for e in seen if e.kind == "step") == 8.0
    at_once = events_of({"name": "mifa", "no_wait": True}, CASE, availability={"2": [[7.0, 1e9]]})
    assert next(e.time for e in at_once if e.kind == "step") == 3.0


@pytest.mark.parametrize("budget", [{"rounds": 5}, {"updates": 50}])
def test_a_run_ends_though_somebody_never_comes(budget: dict[str, int]) -> None:
    """The one who is waited for never comes: nobody is handed work any more. Without waiting the rounds go on."""

    def run(**params: Any) -> tarry.Result:
        method, task = {"name": "mifa", **params}, CASE.problem.task()
        return tarry.run(method, task, dtype="float64", delay=CASE.durations, availability={"2": []}, **budget)

    waits, goes_on = run(), run(no_wait=True)
    assert (waits.rounds, waits.updates) == (0, 3)
    assert goes_on.rounds >= 5


def test_a_round_that_nobody_comes_back_from_is_a_step_by_memory() -> None:
    """Visits 1 of both are lost: round 2 goes as far as round 1 did."""
    lost = replace(CASE, sizes=[3, 5], durations=[[1.0], [2.0]], lost=frozenset({(0, 1), (1, 1)}), updates=5)
    w0, w1, w2, *_ = (w for w in globals_of("mifa", lost))
    np.testing.assert_allclose(w2 - w1, w1 - w0, rtol=1e-10)
    assert np.abs(w1 - w0).max() > 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_what_is_remembered_counts_at_the_rate_of_the_round(optimizer: str) -> None:
    """--lr-decay 0.5; client 1 is there in the first round alone: what it said halves with every round, as the other's.

    With AdamW a first step has the length of the rate, whatever the slope.
    """
    x, y = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    slopes = [(x * 4, y), (x * 12, y)]
    task = tarry.Task("slopes", model=net, loss=lambda out, _: out.mean(), clients=slopes, metrics=["loss"])
    seen: list[tarry.Event] = []
    tarry.run(
        "mifa",
        task,
        dtype="float64",
        steps=1,
        lr=1.0,
        lr_decay=0.5,
        optimizer=optimizer,
        delay=[[1.0], [1.0]],
        availability={"1": [[0.0, 1.0]]},
        rounds=3,
        callbacks=[seen.append],
    )
    first = 8.0 if optimizer == "sgd" else 1.0
    after = [e.weights.item() for e in seen if e.kind == "step"]
    np.testing.assert_allclose(after, [-first, -first * 1.5, -first * 1.75], rtol=1e-8)


# What it keeps


def test_statistics_become_the_mean_of_everybodys_latest() -> None:
    """Client 1 is away in the second round: the mean is of client 0's new ones and client 1's old ones."""
    data = random_clients([8] * 3, 3, 2, seed=0, scales=(0.1, 1.0, 10.0))
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    task = tarry.Task("normed", model=net, loss=nn.functional.cross_entropy, clients=data, metrics=["loss"])
    came: dict[tuple[int, int], torch.Tensor] = {}
    seen: list[tarry.Event] = []

    def look(update: tarry.Update, _: tarry.ServerView) -> tarry.Update:
        came[update.ticket.client, update.ticket.visit] = update.local[-8:]
        return update

    method = replace(tarry.methods.build("mifa"), correct=tarry.stateless(look))
    there = {"1": [[0.0, 1.0]]}
    tarry.run(method, task, dtype="float64", delay=[[1.0]] * 3, availability=there, rounds=2, callbacks=[seen.append])
    one, two = (e.weights[-8:] for e in seen if e.kind == "step")
    torch.testing.assert_close(one, (came[0, 0] + came[1, 0] + came[2, 0]) / 3, rtol=1e-12, atol=0)
    torch.testing.assert_close(two, (came[0, 1] + came[1, 0] + came[2, 1]) / 3, rtol=1e-12, atol=0)


def test_the_server_keeps_n_and_two_models_beside_the_global() -> None:
    result = tarry.run("mifa", CASE.problem.task(), delay=CASE.durations, rounds=5)
    assert result.peak_server_bytes == (4 + 2 + 1) * len(CASE.problem.w0) * 4


SETTINGS: dict[str, Any] = {"task": "digits", "time": 1500.0, "clients": 4, "epochs": 1, "seed": 3}


@pytest.mark.parametrize("method", ["mifa", "mifa:epoch=60,no_wait=true"])
def test_with_its_memory_in_a_file_it_is_the_same_run_and_comes_back_after_a_kill(method: str, tmp_path: Path) -> None:
    whole = tarry.run(method, **SETTINGS)
    in_file: dict[str, Any] = {**SETTINGS, "cache_limit": 1e-3, "checkpoint_every": 1e-6}
    small = tarry.run(method, out=tmp_path / "small", **in_file)
    assert small.weights_sha256 == whole.weights_sha256
    assert small.peak_server_bytes == whole.peak_server_bytes
    interrupted_run(tmp_path / "killed", lambda e: e.updates == 2 * whole.updates // 3, method, **in_file)
    assert list((tmp_path / "killed" / "cache").glob("*.rows"))
    assert tarry.resume(tmp_path / "killed").weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("epoch", [0.0, -1.0, float("nan")])
def test_a_round_without_length_is_refused(epoch: float) -> None:
    with pytest.raises(BadInput, match=f"--method.epoch {epoch}: "):
        build_by_flags(tarry.methods, "mifa", epoch=epoch)
