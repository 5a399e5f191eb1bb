"""FedAvg against its twin and by hand."""

from __future__ import annotations

from hypothesis import given

from tests.helpers.by_hand import globals_after
from tests.methods.fedavg.reference import FedAvg
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


def test_fedavg_by_hand() -> None:
    """c = 4 with one example and −8 with three; a round lasts its slowest member's 2 s.

    round 1   w_A = 2,   w_B = −4      w = ¼·2 + ¾·(−4) = −5/2
    round 2   w_A = ¾,   w_B = −21/4   w = ¼·¾ − ¾·21/4 = −15/4
    """
    assert globals_after("fedavg", [[4], [-8]], [[1], [2]], updates=4, examples=(1, 3)) == [
        (1, 0, 0, [0]),
        (2, 1, 0, [-5 / 2]),
        (3, 0, 0, [-5 / 2]),
        (4, 1, 0, [-15 / 4]),
    ]
