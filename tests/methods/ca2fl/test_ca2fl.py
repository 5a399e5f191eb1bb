"""CA²FL against its twin, where it is FedBuff, and what it keeps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import tarry
from tarry import ServerView, Update, stateless
from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.server import Server
from tarry.core.tickets import LocalResult
from tests.helpers.by_flags import build_by_flags
from tests.helpers.interrupted import interrupted_run
from tests.helpers.models import InnerProduct
from tests.methods.ca2fl.reference import CA2FL
from tests.reference.match import Case, cases, check, events_of, few


@few
@given(st.one_of(cases(), cases(losses=True)), st.integers(1, 7), st.sampled_from([0.3, 1.0]))
def test_it_is_its_twin(case: Case, M: int, eta: float) -> None:
    """A buffer larger than the number of clients meets the same ones again."""
    check({"name": "ca2fl", "buffer": M, "eta": eta}, case, CA2FL(case.problem.w0, len(case.sizes), M=M, eta=eta))


@few
@given(cases())
def test_at_its_defaults_it_is_its_twin(case: Case) -> None:
    check("ca2fl", case, CA2FL(case.problem.w0, len(case.sizes), M=10))


@few
@given(cases())
def test_with_two_at_a_time_it_is_its_twin(case: Case) -> None:
    check({"name": "ca2fl", "buffer": 3}, case, CA2FL(case.problem.w0, len(case.sizes), M=3), concurrency=2)


def server(n: int, **params: Any) -> Server:
    method = tarry.methods.build("ca2fl", **params)
    layout = Layout.of(nn.Linear(2, 1, bias=False))
    return Server(method, torch.zeros(2, dtype=torch.float64), layout=layout, n_clients=n, seed=0)


def visit(at: Server, client: int, *delta: float) -> list[float]:
    """The global after one visit."""
    ticket = at.hand_out(client, 0.0)
    at.receive(ticket.number, LocalResult(torch.tensor(delta, dtype=torch.float64), 1, 1, 0.5), 1.0)
    numbers: list[float] = at.weights.tolist()
    return numbers


def test_two_steps_by_hand() -> None:
    """Four clients, M = 2. v_1 = (4 + 8)/2; then h = (4 + 8)/4 = 3, and v_2 = 3 + ((6 − 4) + (2 − 0))/2 = 5."""
    s = server(4, buffer=2)
    assert visit(s, 0, 4.0, 0.0) == [0.0, 0.0]
    assert visit(s, 1, 8.0, 0.0) == [6.0, 0.0]
    assert visit(s, 0, 6.0, 0.0) == [6.0, 0.0]
    assert visit(s, 3, 2.0, 0.0) == [11.0, 0.0]


def test_who_comes_twice_counts_once_with_its_latest() -> None:
    """M = 3, two clients: S = {0, 1}, so v = ((2 − 0) + (4 − 0))/2 whatever client 0 said first; h = (2 + 4)/2."""
    s = server(2, buffer=3, eta=0.5)
    visit(s, 0, 100.0, 0.0)
    visit(s, 0, 2.0, 1.0)
    assert visit(s, 1, 4.0, 3.0) == [1.5, 1.0]
    for _ in range(3):
        after = visit(s, 0, 2.0, 1.0)  # nothing new: v = h
    assert after == [3.0, 2.0]


def slopes() -> tarry.Task:
    """The gradient is the same everywhere: a client's update never changes."""
    x = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 4], [1, 1, 1]], dtype=torch.float64)
    clients = [(row[None], torch.zeros(1, dtype=torch.float64)) for row in x]
    return tarry.Task(
        "slopes", model=InnerProduct([0.0, 0.0, 0.0]), loss=lambda out, _: out.mean(), clients=clients, metrics=["loss"]
    )


def steps_of(method: Any, task: tarry.Task, **settings: Any) -> list[Tensor]:
    seen: list[tarry.Event] = []
    tarry.run(method, task, dtype="float64", steps=1, batch="all", callbacks=[seen.append], **settings)
    return [e.weights for e in seen if e.stepped]


@pytest.mark.parametrize("M", [1, 2, 3])
def test_with_caches_equal_to_the_incoming_updates_every_step_is_fedbuffs_of_all(M: int) -> None:
    delay = [[1.0], [1.5], [2.5], [0.5, 3.0]]
    after = steps_of({"name": "ca2fl", "buffer": M, "eta": 0.7}, slopes(), delay=delay, lr=0.1, updates=40)
    equal = {"delay": {"name": "constant", "seconds": 1.0}, "lr": 0.1, "updates": 4}
    of_all = steps_of({"name": "fedbuff", "buffer": 4, "a": 0.0, "eta": 0.7}, slopes(), **equal)[0]
    moves = [b - a for a, b in pairwise(after)][8:]  # everybody has come by then
    assert len(moves) >= 4
    for move in moves:
        torch.testing.assert_close(move, of_all, rtol=1e-12, atol=1e-14)


def test_a_buffer_of_everybody_with_equal_delays_is_fedbuffs() -> None:
    """Then the caches cancel: h + mean (Δ_i − h_i) = mean Δ_i."""
    case = Case(5, 2, 2, [3, 5, 4], [[1.0]] * 3, 2, 0.05, 18, False)
    ours, theirs = (
        [e.weights.numpy() for e in events_of(method, case) if e.stepped]
        for method in ({"name": "ca2fl", "buffer": 3}, {"name": "fedbuff", "buffer": 3, "a": 0.0})
    )
    assert len(ours) == 6
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_correction_of_late_updates_is_what_is_cached() -> None:
    """Halved updates are halved in the cache too: all goes half as far."""

    def halved(update: Update, _: ServerView) -> Update:
        return update.replace(weight=0.5)

    plain = tarry.methods.build("ca2fl", buffer=2)
    half = tarry.Method("half", correct=stateless(halved), aggregate=plain.aggregate, step=plain.step)
    settings: dict[str, Any] = {"delay": [[1.0], [1.5], [2.5], [0.5, 3.0]], "lr": 0.1, "updates": 20}
    ours, whole = (torch.stack(steps_of(method, slopes(), **settings)) for method in (half, plain))
    torch.testing.assert_close(ours, whole / 2, rtol=1e-12, atol=1e-14)


def test_what_was_replaced_leaves_nothing_behind() -> None:
    """A huge update, then small ones: single precision would have lost them beside it."""
    method = tarry.methods.build("ca2fl", buffer=1)
    layout = Layout.of(nn.Linear(2, 1, bias=False))
    s = Server(method, torch.zeros(2), layout=layout, n_clients=2, seed=0)
    for delta in (1e8, 0.25, 0.25):
        ticket = s.hand_out(0, 0.0)
        s.receive(ticket.number, LocalResult(torch.full((2,), delta), 1, 1, 0.5), 1.0)
    assert (s.state["aggregate"].sum == 0.25).all()


def test_the_server_keeps_n_and_four_models_beside_the_global() -> None:
    task = slopes()
    result = tarry.run(
        {"name": "ca2fl", "buffer": 4}, task, steps=1, delay={"name": "constant", "seconds": 1.0}, updates=12
    )
    assert result.peak_server_bytes == (4 + 4 + 1) * 3 * 4


SETTINGS: dict[str, Any] = {"task": "digits", "time": 1500.0, "clients": 4, "epochs": 1, "seed": 3}
METHOD = {"name": "ca2fl", "buffer": 3}


def test_with_its_cache_in_a_file_it_is_the_same_run_and_comes_back_after_a_kill(tmp_path: Path) -> None:
    whole = tarry.run(METHOD, **SETTINGS)
    in_file: dict[str, Any] = {**SETTINGS, "cache_limit": 1e-3, "checkpoint_every": 1e-6}
    small = tarry.run(METHOD, out=tmp_path / "small", **in_file)
    assert small.weights_sha256 == whole.weights_sha256
    assert small.peak_server_bytes == whole.peak_server_bytes
    interrupted_run(tmp_path / "killed", lambda e: e.updates == 2 * whole.updates // 3, METHOD, **in_file)
    assert list((tmp_path / "killed" / "cache").glob("*.rows"))
    assert tarry.resume(tmp_path / "killed").weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize(("params", "said"), [({"buffer": 0}, "--method.buffer 0"), ({"eta": 0.0}, "--method.eta 0.0")])
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "ca2fl", **params)
