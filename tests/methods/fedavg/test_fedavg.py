"""FedAvg and FedProx against their twins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.methods.fedavg.reference import FedAvg
from tests.methods.fedprox.reference import descend_held
from tests.reference.match import Case, cases, check, few


@few
@given(cases())
def test_fedavg_is_its_twin(case: Case) -> None:
    check("fedavg", case, FedAvg(case.problem.w0, case.sizes))


@few
@given(cases())
def test_fedavg_weighing_all_alike_is_its_twin(case: Case) -> None:
    check({"name": "fedavg", "weighting": "uniform"}, case, FedAvg(case.problem.w0, [1] * len(case.sizes)))


@few
@given(cases())
def test_fedavg_of_two_a_round_is_its_twin(case: Case) -> None:
    check("fedavg", case, FedAvg(case.problem.w0, case.sizes), concurrency=2)


@few
@given(cases(losses=True))
def test_fedavg_waits_for_nobody_who_is_lost(case: Case) -> None:
    check("fedavg", case, FedAvg(case.problem.w0, case.sizes))


@few
@given(cases(), st.sampled_from([0.1, 1.0, 5.0]))
def test_fedprox_is_its_twin(case: Case, mu: float) -> None:
    problem = case.problem
    check(
        {"name": "fedprox", "mu": mu},
        case,
        FedAvg(problem.w0, case.sizes),
        train=lambda m, w: descend_held(problem, m, w, steps=case.steps, lr=case.lr, mu=mu),
    )
