"""TWAFL against its twin, and what it promises."""

from __future__ import annotations

from dataclasses import replace
from math import e
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarry
from tarry.core.errors import BadInput
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import InnerProduct, towards
from tests.methods.fedavg.reference import FedAvg
from tests.methods.twafl.reference import TWAFL
from tests.reference.match import Case, cases, check, few

some = settings(few, max_examples=8)


@pytest.mark.parametrize("a", [1.0, e / 2, 3.0])
@some
@given(case=cases(), limit=st.integers(1, 2))
def test_it_is_its_twin_when_few_train_at_once(a: float, case: Case, limit: int) -> None:
    check({"name": "twafl", "a": a}, case, TWAFL(case.problem.w0, case.sizes, a), concurrency=limit)


@some
@given(cases(losses=True))
def test_it_is_its_twin_when_visits_are_lost(case: Case) -> None:
    check("twafl", case, TWAFL(case.problem.w0, case.sizes, e / 2))


@some
@given(cases(), st.sampled_from([1.0, e / 2]))
def test_with_everybody_in_every_round_it_is_fedavg_whatever_fades(case: Case, a: float) -> None:
    check({"name": "twafl", "a": a}, case, FedAvg(case.problem.w0, case.sizes))


def steps(task: tarry.Task, **setup: Any) -> list[tuple[int, float]]:
    """Who came, and the global then, one client a round."""
    seen: list[tarry.Event] = []
    what: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 1, "lr": 0.5, "concurrency": 1, **setup}
    tarry.run({"name": "twafl", "a": 2.0}, task, callbacks=[seen.append], **what)
    return [(v.client, v.weights.item()) for v in seen if v.kind == "arrival"]


def test_two_clients_by_turns_by_hand() -> None:
    """a = 2: who came this round counts 1, the other ½, ¼, … by rounds since it came."""
    got = steps(towards([8.0], [-8.0]), delay=[1.0, 1.0], updates=12, seed=1)
    w, kept = 0.0, dict[int, tuple[float, int]]()
    for t, (client, after) in enumerate(got):
        kept[client] = ((w + (8.0, -8.0)[client]) / 2, t)
        shares = {k: 0.5 ** (t - then) for k, (_, then) in kept.items()}
        w = sum(shares[k] * own for k, (own, _) in kept.items()) / sum(shares.values())
        assert after == pytest.approx(w, rel=1e-12)
    assert {client for client, _ in got} == {0, 1}


def test_the_weights_sum_to_1_however_long_somebody_is_away() -> None:
    """Both stand where they want to be: nothing shrinks though client 1 leaves for good."""
    task = replace(towards([4.0], [4.0]), model=InnerProduct([4.0]))
    got = steps(task, delay=[1.0, 1.0], availability={"1": [[0.0, 6.5]]}, updates=60)
    assert {client for client, _ in got} == {0, 1}
    assert all(abs(after - 4.0) < 1e-13 for _, after in got)


def test_the_server_keeps_a_model_a_client_and_two_for_the_sum() -> None:
    setup: dict[str, Any] = {
        "task": towards(*([a] for a in range(1, 7))),
        "dtype": "float64",
        "delay": [1.0] * 6,
        "rounds": 3,
    }
    size = 8
    more = tarry.run("twafl", **setup).peak_server_bytes - tarry.run("fedavg", **setup).peak_server_bytes
    assert more == size * 6  # the sum takes the place of FedAvg's, both in double precision here


@pytest.mark.parametrize("a", [0.5, -1.0])
def test_models_that_grow_with_age_are_refused(a: float) -> None:
    with pytest.raises(BadInput, match=f"--method.a {a}: must be 1 or more"):
        build_by_flags(tarry.methods, "twafl", a=a)
