"""HFL against its twin; its correction beside DC-ASGD's; and what is left where nothing is late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import ServerView
from tarry.core.tickets import Ticket, Update
from tests.helpers.by_flags import build_by_flags
from tests.methods.fedavg.reference import FedAvg, descend
from tests.methods.hfl.reference import HFL, Work
from tests.reference.clock import agree, following, play
from tests.reference.loop import pick_all
from tests.reference.match import Case, cases, check, events_of, few
from tests.reference.problem import Vec

some = settings(few, max_examples=10)


def check_epochs(method: dict[str, Any], case: Case, *, concurrency: int | None = None) -> None:
    """The library and the twin agree on every step and hand-out: when, who, and the global weights."""
    problem, seen = case.problem, events_of({"name": "hfl", **method}, case, concurrency=concurrency)
    server = HFL(problem.w0, case.sizes, **method)

    def train(k: int) -> Work:
        return server.t, server.w, descend(problem, k, server.w, steps=case.steps, lr=case.lr)

    pick = following(seen) if concurrency else pick_all
    agree(seen, *play(server, train, case.durations, updates=case.updates, pick=pick, lost=case.lost))


@pytest.mark.parametrize("method", [{}, {"lam": 1.0, "h": 5.0}, {"h": 0.0}, {"epoch": 1.5}], ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    check_epochs(method, case)


@some
@given(case=cases(), limit=st.integers(1, 2))
def test_it_is_its_twin_when_not_all_train_at_once(case: Case, limit: int) -> None:
    check_epochs({}, case, concurrency=limit)


# Where nothing is late

EQUAL: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 3, "lr": 0.1, "delay": [2.0] * 4, "rounds": 6}


def after_steps(method: Any, case: Case, **setup: Any) -> list[torch.Tensor]:
    seen: list[tarry.Event] = []
    tarry.run(method, case.problem.task(), callbacks=[seen.append], **{**EQUAL, **setup})
    return [e.weights for e in seen if e.stepped]


FOUR = Case(3, 2, 3, [5, 1, 4, 2], [[2.0]] * 4, 3, 0.1, 24, False)


def test_with_equal_speed_it_is_fedavg() -> None:
    ours = after_steps("hfl", FOUR)
    torch.testing.assert_close(ours, after_steps("fedavg", FOUR), rtol=1e-12, atol=1e-14)
    assert len(ours) == 6


def test_of_one_client_it_is_asgd_of_a_whole_step() -> None:
    """Nothing is ever late; a round is one arrival."""
    one, alone = replace(FOUR, sizes=[5]), {"delay": [2.0], "rounds": 12}
    ours = after_steps("hfl", one, **alone)
    torch.testing.assert_close(ours, after_steps({"name": "asgd", "eta": 1.0}, one, **alone), rtol=1e-12, atol=1e-14)
    assert len(ours) == 12


@some
@given(cases())
def test_without_weight_for_stragglers_those_who_are_late_do_not_count(case: Case) -> None:
    """λ_0 = 0: a client of twice the others' time is always late, and the rest is FedAvg among themselves."""
    durations = [[1.0]] * (len(case.sizes) - 1) + [[2.0]]
    seen = events_of({"name": "hfl", "lam": 0.0}, replace(case, durations=durations))
    twin = FedAvg(case.problem.w0, case.sizes)
    for e in (e for e in seen if e.kind == "step"):
        fast = range(len(case.sizes) - 1)
        started = [(m, twin.start(m)) for m in fast]
        for m, w in started:
            twin.receive(m, descend(case.problem, m, w, steps=case.steps, lr=case.lr))
        np.testing.assert_allclose(e.weights.numpy(), twin.w, rtol=1e-10, atol=1e-12)


# The correction by itself


def after(method: tarry.Method, delta: list[float], drift: list[float]) -> list[float]:
    """The corrected displacement of an update handed out before the global drifted."""
    d, g = (torch.tensor(x, dtype=torch.float64) for x in (delta, drift))
    layout = Layout((Block("w", 0, len(d), (len(d),), Kind.PARAM),))
    old = torch.ones_like(d)
    now = ServerView(old + g, layout, 3, 1.0, 0, 2, 0, 0)
    update = Update(Ticket(0, 0, 0, 0, 0.0, old, old), d, 1, 1, 3)
    corrected, _ = method.correct(update, method.correct.init(old), now)
    moved: list[float] = corrected.delta.tolist()
    return moved


def test_the_outer_product_shortens_what_the_others_did_already_and_the_diagonal_bends_it() -> None:
    """δ = (1, 2), G = (2, 0): δ·G = 2. Whole: (1 − 2h) δ. Diagonal: δ − λ (1·2, 4·0)."""
    hfl = tarry.methods.build("hfl", h=0.25)
    assert after(hfl, [1.0, 2.0], [2.0, 0.0]) == [0.5, 1.0]
    assert after(tarry.methods.build("dc-asgd", lam=0.25), [1.0, 2.0], [2.0, 0.0]) == [0.5, 2.0]
    assert after(hfl, [-1.0, 2.0], [2.0, 0.0]) == [-1.5, 3.0]  # against the others: lengthened


def test_the_taylor_term_is_exact_where_the_gradient_is_all_there_is_of_the_hessian() -> None:
    """f = ½ (a·w − b)² at residual 1 has the Hessian a aᵀ = g gᵀ: then ĝ is the gradient at the present weights."""
    a, w, drift = np.array([1.0, -2.0]), np.array([0.5, 0.25]), np.array([0.3, 0.1])
    b = a @ w - 1
    g, present = a * (a @ w - b), a * (a @ (w + drift) - b)
    left = after(tarry.methods.build("hfl"), list(-g), list(drift))
    np.testing.assert_allclose(left, -present, rtol=1e-14)


@some
@given(cases(), st.sampled_from([0.5, 3.0]))
def test_as_a_correction_on_arrival_it_is_asgd_but_for_the_late(case: Case, h: float) -> None:
    class OnArrival:
        in_rounds = False

        def __init__(self) -> None:
            self.w, self.t, self.handed = case.problem.w0, 0, dict[int, tuple[int, Vec]]()

        def start(self, m: int) -> Vec:
            self.handed[m] = (self.t, self.w)
            return self.w

        def receive(self, m: int, w_m: Vec) -> int:
            then, old = self.handed[m]
            g = old - w_m
            self.w = self.w - 0.4 * (g + h * np.outer(g, g) @ (self.w - old))
            self.t += 1
            return self.t - 1 - then

        def lose(self, m: int) -> None:
            raise AssertionError("nothing is lost here")

    crossed = tarry.core.compose.compose(tarry.methods.build("asgd"), {"correct": tarry.methods.build("hfl", h=h)})
    check(crossed, case, OnArrival())


@pytest.mark.parametrize(
    ("params", "said"),
    [({"lam": 1.5}, "--method.lam 1.5"), ({"lam": -0.1}, "--method.lam -0.1"), ({"h": -1.0}, "--method.h -1.0")],
)
def test_what_cannot_be_is_refused(params: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "hfl", **params)
