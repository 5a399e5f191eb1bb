"""GradMA against its twin; what is remembered, for how long and at what cost; and where it is FedAvg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import tarry
from tarry.core.errors import BadInput, SolverFailed
from tarry.core.layout import Layout
from tarry.core.server import Server
from tarry.core.tickets import LocalResult
from tarry.methods.gradma import MemoryState
from tarry.parts import cone
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import batchnorm_net, random_clients, towards
from tests.methods.fedavg.reference import FedAvg, descend
from tests.methods.gradma.reference import QP, GradMA, worker_update
from tests.reference.loop import Twin, play
from tests.reference.match import Case, cases, events_of, few
from tests.reference.problem import Vec

some = settings(few, max_examples=6)


def worker(case: Case, qp: QP) -> Callable[[int, Vec], Vec]:
    """The twin's client, who remembers what came of visits that were not lost."""
    problem, visits, last = case.problem, dict[int, int](), dict[int, Vec]()

    def train(i: int, x: Vec) -> Vec:
        visit = visits[i] = visits.get(i, -1) + 1
        end = worker_update(problem, i, x, last.get(i, x), qp, steps=case.steps, lr=case.lr)
        if (i, visit) not in case.lost:
            last[i] = end
        return end

    return train


def compare(method: dict[str, Any], case: Case, *, concurrency: int | None = None) -> None:
    """The library and the twin agree on every arrival.

    The rate is one that lets a worker's rows come apart: a full batch's second step stands at 90° to its first. Rows
    are still close to opposite, and a Gram matrix has half the digits of the rows: hence the tolerance.
    """
    case = replace(case, lr=0.2)
    layers = [layer.at for layer in case.problem.layers]
    qp = QP(layers if method.get("projection") == "layer" else [slice(0, layers[-1].stop)])
    sizes = [1] * len(case.sizes) if method.get("weighting") == "uniform" else case.sizes
    how = {k: v for k, v in method.items() if k in ("beta1", "beta2", "eta", "memory")}
    side = method.get("side", "both")
    w0, seen = case.problem.w0, events_of({"name": "gradma", **method}, case, concurrency=concurrency)

    def pick(now: float, idle: list[int]) -> list[int]:
        return [e.client for e in seen if e.kind == "hand_out" and e.time == now] if concurrency else idle

    twin: Twin = FedAvg(w0, sizes) if side == "worker" else GradMA(w0, sizes, qp, **how)
    plain = partial(descend, case.problem, steps=case.steps, lr=case.lr)
    train = plain if side == "server" else worker(case, qp)
    expected = play(twin, train, case.durations, updates=case.updates, pick=pick, lost=case.lost)
    assume(qp.thinnest > 1e-2)
    arrived = [e for e in seen if e.kind == "arrival"]
    assert [(e.time, e.client, e.staleness) for e in arrived] == [e[:3] for e in expected]
    for a, e in zip(arrived, expected, strict=True):
        np.testing.assert_allclose(a.weights.numpy(), e.w, rtol=1e-7, atol=1e-8)


METHODS: list[dict[str, Any]] = [
    {},
    {"side": "server", "eta": 0.7},
    {"side": "worker", "weighting": "uniform"},
    {"projection": "layer"},
    {"beta1": 0.9, "beta2": 1.0, "side": "server"},
    {"beta1": 0.0, "beta2": 0.0},
    {"memory": 0},
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    compare(method, case)


@pytest.mark.parametrize("method", [{}, {"side": "server", "beta2": 0.9, "projection": "layer"}], ids=str)
@some
@given(case=cases(), limit=st.integers(1, 2), memory=st.integers(2, 4))
def test_it_is_its_twin_when_few_are_remembered_of_many(
    method: dict[str, Any], case: Case, limit: int, memory: int
) -> None:
    compare({**method, "memory": memory}, case, concurrency=limit)


# A worker, on quadratics ½ ‖w − a_k‖²: the gradient is w − a_k, and plain training goes straight towards a_k.


def gradma(**params: Any) -> tarry.Method:
    return build_by_flags(tarry.methods, "gradma", **params)


def run(method: tarry.Method, task: tarry.Task, **setup: Any) -> tuple[list[tarry.Event], list[Any]]:
    """Events, and every update in order of arrival."""
    seen: list[tarry.Event] = []
    came: list[Any] = []
    correct = tarry.stateless(lambda update, _: came.append(update) or update)
    what: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 1, "lr": 0.5, **setup}
    tarry.run(replace(method, correct=correct), task, callbacks=[seen.append], **what)
    return seen, came


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_worker_goes_no_further_along_the_way_it_has_come(steps: int) -> None:
    """The first step goes half the way to (4, 2); all others would go on in the same direction."""
    _, came = run(gradma(side="worker"), towards((4.0, 2.0)), delay=[[1.0]], rounds=1, steps=steps)
    torch.testing.assert_close(came[0].delta, torch.tensor([2.0, 1.0]).double(), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    ("jump", "moved"),
    [
        ((3.0, 3.0), (-0.6, 0.3)),  # g = (2, 1); r·g = −2, so g + 2/1.25 r = (1.2, −0.6) is left
        ((-3.0, -3.0), (2.0, 2.5)),  # no conflict: half the way
    ],
)
def test_a_worker_goes_by_the_model_its_last_visit_ended_with(
    jump: tuple[float, float], moved: tuple[float, float]
) -> None:
    """One client at (1, 2) comes half-way there, to where the gradient is r = (−½, −1); then the server jumps."""
    away = torch.tensor(jump, dtype=torch.float64)
    method = tarry.Method("jump", local=gradma().local, step=tarry.stateless(lambda update, now: away))
    _, came = run(method, towards((1.0, 2.0)), delay=[[1.0]], updates=2)
    assert torch.equal(came[1].ticket.sent, away)
    torch.testing.assert_close(came[1].delta, torch.tensor(moved).double(), rtol=1e-7, atol=0)


# The server, driven by hand: who comes, with what


class Rounds:
    """A server of two weights; `round` is one in which some clients come with a displacement each."""

    def __init__(self, n_clients: int = 9, **params: Any):
        layout = Layout.of(nn.Linear(2, 1, bias=False))
        start = torch.zeros(2, dtype=torch.float64)
        self.server = Server(gradma(side="server", **params), start, layout=layout, n_clients=n_clients, seed=0)

    def round(self, **deltas: tuple[float, float]) -> list[float]:
        """Clients a, b, c ... in this order; the way the global went."""
        before = self.server.weights
        tickets = {name: self.server.hand_out(ord(name) - ord("a"), 0.0) for name in deltas}
        for name, d in deltas.items():
            self.server.receive(tickets[name].number, LocalResult(torch.tensor(d).double(), 1, 1, 0.5), 1.0)
        return (self.server.weights - before).tolist()

    @property
    def state(self) -> MemoryState:
        state: MemoryState = self.server.state["aggregate"]
        return state

    @property
    def remembered(self) -> dict[str, list[float]]:
        return {chr(ord("a") + i): self.state.D[i].tolist() for i in self.state.D}


def test_a_step_against_one_remembered_client_loses_what_goes_against_it() -> None:
    """Momentum ½: (1, 0), then ½ (1, 0) + (−3, 2) = (−2½, 2), of which (−2½, 0) goes against a and (0, 2) is left.

    Then ½ (0, 2) + (−3, 0): a again forbids the left, b, who remembers ½ (−3, 2) + (−3, 0), the right.
    """
    s = Rounds()
    assert s.round(a=(1.0, 0.0)) == [1.0, 0.0]
    assert s.round(b=(-3.0, 2.0)) == pytest.approx([0.0, 2.0], abs=1e-15)
    assert s.round(b=(-3.0, 0.0)) == pytest.approx([0.0, 1.0], abs=1e-15)
    assert s.remembered == {"a": [1.0, 0.0], "b": [-4.5, 1.0]}


def test_what_is_remembered_fades_with_every_round() -> None:
    s = Rounds(beta2=0.5)
    s.round(a=(8.0, 0.0), b=(0.0, 1.0))
    s.round(b=(0.0, 1.0))
    s.round(b=(1.0, 0.0))
    s.round(a=(0.0, 1.0))
    assert s.remembered == {"a": [1.0, 1.0], "b": [1.0, 0.75]}


def test_without_beta2_only_the_round_itself_is_remembered() -> None:
    s = Rounds(beta2=0.0, beta1=0.0)
    s.round(a=(1.0, 0.0))
    assert s.round(b=(-1.0, 0.5)) == [-1.0, 0.5]
    assert s.remembered == {"b": [-1.0, 0.5]}


def test_the_least_counted_makes_room_and_never_one_of_the_round() -> None:
    s = Rounds(memory=3)
    up = (0.0, 1.0)
    s.round(a=up, b=up, c=up)
    s.round(a=up, b=up)
    s.round(d=up)
    assert [*s.remembered] == ["a", "b", "d"]  # a and b came twice, c once
    s.round(d=up)
    s.round(e=up, a=up)
    assert [*s.remembered] == ["a", "d", "e"]  # all came twice; a is here now, b was there before d
    s.round(c=up)
    assert [*s.remembered] == ["a", "d", "c"]
    assert dict(s.state.count) == {0: 3, 3: 2, 2: 1}, "c's count began anew"
    s.round(c=up, d=up, f=up)
    assert [*s.remembered] == ["d", "c", "f"], "a is counted most, but the others are here"


def test_of_a_round_larger_than_the_memory_some_are_remembered() -> None:
    s = Rounds(memory=2)
    s.round(a=(1.0, 0.0), b=(0.0, 1.0), c=(1.0, 1.0))
    assert [*s.remembered] == ["b", "c"]


def test_products_that_are_kept_are_those_of_what_is_remembered() -> None:
    s, rng = Rounds(memory=4), np.random.default_rng(5)
    for _ in range(30):
        here = rng.choice(list("abcdefgh"), size=rng.integers(1, 4), replace=False)
        s.round(**{name: tuple(rng.normal(size=2)) for name in here})
        M = np.array([*s.remembered.values()])
        assert s.state.order == [*s.state.D]
        np.testing.assert_allclose(s.state.gram[0].numpy(), M @ M.T, rtol=1e-13)


def test_every_step_is_within_90_degrees_of_all_that_is_remembered() -> None:
    s, rng, turned = Rounds(memory=5, beta1=0.9), np.random.default_rng(6), 0
    for _ in range(60):
        here = rng.choice(list("abcdefgh"), size=2, replace=False)
        deltas = {name: tuple(rng.normal(size=2) + np.array([1.0, 0.0])) for name in here}
        momentum = s.state.momentum
        way = np.array(s.round(**deltas))
        plain = np.mean([*deltas.values()], axis=0) + (0 if momentum is None else 0.9 * momentum.numpy())
        M = np.array([*s.remembered.values()])
        assert (M @ way >= -1e-12).all()
        if (M @ plain >= 0).all():
            np.testing.assert_allclose(s.state.momentum.numpy(), plain, rtol=1e-15)
        else:
            turned += 1
            assert np.linalg.norm(way) < np.linalg.norm(plain)
    assert 10 < turned < 50


# Where it is FedAvg


SETUP: dict[str, Any] = {"delay": [[1.0], [2.0], [1.5, 0.5]], "rounds": 8, "lr": 0.1}
APART = [(5.0, 1.0), (-2.0, 3.0), (0.0, -4.0)]


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_without_memory_and_momentum_it_is_fedavg_to_the_bit(weighting: str) -> None:
    method = gradma(side="server", memory=0, beta1=0.0, weighting=weighting)
    seen, _ = run(method, towards(*APART), steps=3, **SETUP)
    other, _ = run(tarry.methods.build("fedavg", weighting=weighting), towards(*APART), steps=3, **SETUP)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(seen, other, strict=True))
    assert not torch.equal(seen[-1].weights, seen[0].weights)


def test_where_nobody_conflicts_the_server_only_accelerates() -> None:
    """All want up and right: with β_1 = 0 FedAvg to the bit, whatever is remembered."""
    agreed = towards((50.0, 90.0), (90.0, 50.0), (70.0, 60.0))
    seen, _ = run(gradma(side="server", beta1=0.0), agreed, steps=3, **SETUP)
    other, _ = run(tarry.methods.build("fedavg"), agreed, steps=3, **SETUP)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(seen, other, strict=True))


# Running statistics, notes, failures


def test_statistics_go_to_the_mean_of_the_round_and_momentum_leaves_them_alone() -> None:
    data = random_clients([12] * 4, 3, 2, seed=9, scales=[3.0**-k for k in range(4)])
    module = batchnorm_net(3, 4, 2, momentum=0.5, seed=8)
    task = tarry.Task("normed", model=module, loss=nn.functional.cross_entropy, clients=data)
    seen, came = run(gradma(), task, delay=[[1.0]] * 4, rounds=5, steps=3, batch=6, lr=0.05)
    n = came[0].delta.numel() - 8
    for number, e in enumerate(e for e in seen if e.stepped):
        mean = torch.stack([u.local[n:] for u in came[4 * number : 4 * number + 4]]).mean(dim=0)
        torch.testing.assert_close(e.weights[n:], mean, rtol=1e-12, atol=0)


def test_corrections_are_noted() -> None:
    """On a line, the second of two steps is always corrected; two clients that pull apart leave nothing."""
    seen: list[tarry.Event] = []
    setup: dict[str, Any] = {"delay": [[1.0], [1.0]], "rounds": 2, "dtype": "float64", "lr": 0.1, "steps": 2}
    tarry.run(gradma(), towards((9.0, 0.0), (-1.0, 0.0)), callbacks=[seen.append], diagnose=True, **setup)
    notes = [e.notes for e in seen if e.kind == "arrival"]
    assert [n["corrected"] for n in notes if n] == [0.5] * 4
    assert [(n["active"], n["remembered"]) for n in notes if n and "active" in n] == [(1, 2)] * 2
    assert seen[-1].weights.abs().max() < 1e-15


def test_a_programme_that_is_not_solved_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the step that would have gone uncorrected."""
    seen: list[tarry.Event] = []
    monkeypatch.setattr(cone, "solver", lambda: lambda A, b, maxiter: (np.zeros(len(b)), 0.0))
    with pytest.raises(SolverFailed, match="breaks a condition"):
        tarry.run(gradma(), towards((9.0, 0.0), (-1.0, 0.0)), callbacks=[seen.append], delay=[[1.0], [1.0]], rounds=3)
    assert not any(e.stepped for e in seen)


def test_a_missing_library_is_told_before_anybody_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    seen: list[tarry.Event] = []
    monkeypatch.setattr(cone, "import_module", missing)
    setup: dict[str, Any] = {"delay": [[1.0], [1.0]], "rounds": 2, "callbacks": [seen.append]}
    with pytest.raises(BadInput, match="pip install scipy"):
        tarry.run(gradma(), towards(*APART[:2]), **setup)
    assert not seen
    tarry.run(gradma(memory=0), towards(*APART[:2]), **setup)
    assert seen


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"beta1": 1.0}, "--method.beta1 1.0"),
        ({"beta1": -0.1, "beta2": 1.5}, "--method.beta1 -0.1: .*\n--method.beta2 1.5: "),
        ({"beta2": float("nan")}, "--method.beta2 nan"),
        ({"memory": -1}, "--method.memory -1"),
        ({"eta": 0.0}, "--method.eta 0.0"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        gradma(**params)
