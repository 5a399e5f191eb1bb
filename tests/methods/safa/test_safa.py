"""SAFA against its twin, where it is FedAvg, whom it picks, what it throws away, and what it keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.server import Server
from tarry.core.tickets import LocalResult
from tests.helpers.by_flags import build_by_flags
from tests.helpers.interrupted import interrupted_run
from tests.helpers.models import InnerProduct, half_mean_square, half_square
from tests.methods.fedavg.reference import descend
from tests.methods.safa.reference import SAFA, play
from tests.reference.clock import agree, following
from tests.reference.loop import pick_all
from tests.reference.match import Case, cases, events_of, few
from tests.reference.problem import Vec

some = settings(few, max_examples=12)


def check(method: dict[str, Any], case: Case, *, concurrency: int | None = None) -> int:
    """The library and the twin agree on every step and hand-out: when, who, and the global weights."""
    problem, seen = case.problem, events_of({"name": "safa", **method}, case, concurrency=concurrency)

    letters = {"fraction": "C", "lag": "tau", "limit": "T_lim"}
    expected, handed, wasted = play(
        SAFA(problem.w0, len(case.sizes), **{letters[k]: v for k, v in method.items()}),
        lambda k, w: descend(problem, k, w, steps=case.steps, lr=case.lr),
        case.sizes,
        case.durations,
        updates=case.updates,
        pick=following(seen) if concurrency else pick_all,
        lost=case.lost,
    )
    agree(seen, expected, handed)
    return wasted


METHODS: list[dict[str, Any]] = [
    {},
    {"fraction": 1.0},
    {"fraction": 0.3, "lag": 1},
    {"fraction": 0.7, "lag": 0},
    {"fraction": 0.4, "lag": 2, "limit": 1.0},
    {"fraction": 0.8, "limit": 100.0},
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    check(method, case)


@pytest.mark.parametrize("method", METHODS[1:4], ids=str)
@some
@given(case=cases(losses=True), limit=st.integers(1, 2))
def test_it_is_its_twin_when_not_all_train_at_once(method: dict[str, Any], case: Case, limit: int) -> None:
    check(method, case, concurrency=limit)


#: two fast clients make the rounds, the third needs five of them
STRAGGLER = Case(5, 2, 2, [3, 5, 4], [[0.5], [1.0], [5.0]], 2, 0.05, 60, False)


@pytest.mark.parametrize("lag", [0, 2, 5])
def test_with_a_straggler_it_is_its_twin(lag: int) -> None:
    wasted = check({"lag": lag, "limit": 1.0}, STRAGGLER)
    assert (wasted > 0) == (lag < 5)


def test_with_a_straggler_among_losses_it_is_its_twin() -> None:
    lost = frozenset({(0, 0), (1, 0), (0, 1), (2, 1), (1, 3), (0, 5), (1, 5)})
    assert check({"lag": 1, "limit": 1.0}, replace(STRAGGLER, lost=lost)) > 0


# Where it is FedAvg


def globals_of(method: Any, case: Case) -> list[Vec]:
    weights: dict[int, Vec] = {}
    for e in events_of(method, case):
        weights.setdefault(e.version, e.weights.numpy())
    return list(weights.values())


@some
@given(case=cases())
def test_picking_everybody_in_time_it_is_fedavg(case: Case) -> None:
    """C = 1, and a limit that no round reaches."""
    whole = replace(case, updates=4 * len(case.sizes) + 1)
    ours, theirs = (globals_of(m, whole) for m in ({"name": "safa", "fraction": 1.0, "limit": 100.0}, "fedavg"))
    assert len(ours) == len(theirs) == 5
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_rounds_as_long_as_the_first_are_enough_when_everybody_is_always_as_fast() -> None:
    case = replace(STRAGGLER, updates=16)
    ours, theirs = (globals_of(m, case) for m in ({"name": "safa", "fraction": 1.0}, "fedavg"))
    assert len(ours) == len(theirs) == 6
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


# By hand: client k says a_k, wherever it begins, so that a global shows whose entries are in it.


def says(n: int) -> tarry.Task:
    """Client k goes all the way to the k-th unit vector in one step at rate 1."""
    eye = torch.eye(4, dtype=torch.float64)
    data = [(eye, eye[k]) for k in range(n)]
    return tarry.Task("says", model=InnerProduct([0.0] * 4), loss=half_square, clients=data, metrics=["loss"])


def steps_of(n: int, delay: list[list[float]], rounds: int, **params: Any) -> list[tuple[float, list[float]]]:
    """Time and the global, times the number of clients, after every step."""
    seen: list[tarry.Event] = []
    what: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 1, "lr": 1.0, "rounds": rounds}
    tarry.run({"name": "safa", **params}, says(n), delay=delay, callbacks=[seen.append], **what)
    return [(e.time, (e.weights * n).round(decimals=9).tolist()) for e in seen if e.kind == "step"]


def test_the_fastest_are_picked_and_who_was_picked_last_goes_behind() -> None:
    """C m = 2 of four that take 1, 2, 3 and 4 s. Round 1: 0 and 1 by 2 s. Round 2, at most 2 s: 2 comes at 3 and 3 at
    4 s, before 0 (at 3 s) and 1 (at 4 s), which were picked: their new entries bypass. Unit vectors tell who is in.
    """
    one, two = steps_of(4, [[1.0], [2.0], [3.0], [4.0]], 2)
    assert one == (2.0, [1.0, 1.0, 0.0, 0.0])
    assert two == (4.0, [1.0, 1.0, 1.0, 1.0])


def test_places_that_nobody_else_takes_go_to_who_was_picked_last() -> None:
    """As before, but 2 and 3 take 10 s: round 2 ends at 4 s with 0 and 1 again."""
    seen: list[tarry.Event] = []
    tarry.run("safa", says(4), delay=[[1.0], [2.0], [10.0], [10.0]], steps=1, lr=1.0, rounds=2, callbacks=[seen.append])
    assert [e.time for e in seen if e.kind == "step"] == [2.0, 4.0]


def test_an_undrafted_upload_counts_from_the_next_round_on() -> None:
    """One place, and all three come at one instant: 0 is picked, 1 and 2 bypass; so they are in the second global."""
    one, two = steps_of(3, [[1.0]] * 3, 2, fraction=0.3)
    assert one == (1.0, [1.0, 0.0, 0.0, 0.0])
    assert two == (2.0, [1.0, 1.0, 1.0, 0.0])


def test_entries_that_lag_too_far_become_the_global_and_what_was_trained_meanwhile_is_thrown_away() -> None:
    """C m = 1 of two, τ = 1. Client 0 makes a round a second; client 1 takes 3.5 s. W is (a + b)/2 of the entries.

    At 1 s (e, 0)/2, at 2 s the same, and so client 1's entry becomes that W as it lags by 2: (e + e/2)/2 at 3 s. What 1
    brings at 3.5 s, begun at 0, is thrown away, and it is handed the global of 3.5 s at once.
    """
    seen: list[tarry.Event] = []
    setup: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 1, "lr": 1.0, "rounds": 4}
    method = {"name": "safa", "fraction": 0.5, "lag": 1, "limit": 1.0}
    tarry.run(method, says(2), delay=[[1.0], [3.5]], callbacks=[seen.append], **setup)
    assert [e.weights[0].item() for e in seen if e.kind == "step"] == [0.5, 0.5, 0.75, 0.75]
    assert all(e.weights[1] == 0 for e in seen)
    assert [(e.time, e.version) for e in seen if e.kind == "hand_out" and e.client == 1] == [(0.0, 0), (3.5, 3)]


def test_sizes_weigh_and_who_has_not_come_has_the_mean_size() -> None:
    """n_0 = 2, n_1 = 6; client 2, of 100, has not come by the first round's end and counts as 4 at w = 0."""
    eye = torch.eye(4, dtype=torch.float64)
    data = [(eye[:1].repeat(n, 1) * 1.0, torch.full((n,), float(a))) for n, a in ((2, 12.0), (6, 24.0), (100, 0.0))]
    task = tarry.Task("sizes", model=InnerProduct([0.0] * 4), loss=half_mean_square, clients=data, metrics=["loss"])
    seen: list[tarry.Event] = []
    setup: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 1, "lr": 1.0, "rounds": 1}
    tarry.run({"name": "safa", "fraction": 0.6}, task, delay=[[1.0], [1.0], [5.0]], callbacks=[seen.append], **setup)
    assert seen[-1].kind == "step"
    assert seen[-1].weights[0].item() == pytest.approx((2 * 12 + 6 * 24 + 4 * 0) / 12)


# What it keeps


@pytest.mark.parametrize(("fraction", "undecided"), [(0.5, 2), (0.75, 1), (1.0, 0)])
def test_the_server_keeps_m_and_two_models_and_the_undecided_beside_the_global(fraction: float, undecided: int) -> None:
    """Round 1 is of the C m that it picks. In round 2 these come first, and some are not certain of their places."""
    method = tarry.methods.build("safa", fraction=fraction)
    server = Server(method, torch.zeros(4), layout=Layout.of(InnerProduct([0.0] * 4)), n_clients=4, seed=0)
    for cohort in (range(round(4 * fraction)), range(4)):
        for ticket in [server.hand_out(k, 0.0) for k in cohort]:
            server.receive(ticket.number, LocalResult(torch.ones(4), 1, 1, 0.5), 1.0)
        assert server.end_instant(1.0)
    assert server.meter.peak == (4 + 2 + undecided + 1) * 16
    assert server.meter.held == 16


def test_a_round_of_one_instant_keeps_what_bypasses_it_till_its_end() -> None:
    """One place in four: three are undrafted, with rows of their own."""
    result = tarry.run({"name": "safa", "fraction": 0.25}, says(4), delay=[[1.0]] * 4, steps=1, rounds=3)
    assert result.peak_server_bytes == (4 + 2 + 3 + 1) * 16


SETTINGS: dict[str, Any] = {"task": "digits", "time": 1500.0, "clients": 4, "epochs": 1, "seed": 3}


@pytest.mark.parametrize("method", ["safa", "safa:fraction=0.3,lag=1"])
def test_with_its_cache_in_a_file_it_is_the_same_run_and_comes_back_after_a_kill(method: str, tmp_path: Path) -> None:
    whole = tarry.run(method, **SETTINGS)
    in_file: dict[str, Any] = {**SETTINGS, "cache_limit": 1e-3, "checkpoint_every": 1e-6}
    small = tarry.run(method, out=tmp_path / "small", **in_file)
    assert small.weights_sha256 == whole.weights_sha256
    assert small.peak_server_bytes == whole.peak_server_bytes
    interrupted_run(tmp_path / "killed", lambda e: e.updates == 2 * whole.updates // 3, method, **in_file)
    assert list((tmp_path / "killed" / "cache").glob("*.rows"))
    assert tarry.resume(tmp_path / "killed").weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"fraction": 0.0}, "--method.fraction 0.0"),
        ({"fraction": 1.1}, "--method.fraction 1.1"),
        ({"lag": -1}, "--method.lag -1"),
        ({"limit": 0.0}, "--method.limit 0.0"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "safa", **params)
