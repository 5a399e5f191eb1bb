"""FedBuff against its twin and by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.by_hand import globals_after
from tests.methods.fedbuff.reference import FedBuff
from tests.reference.match import Case, cases, check, few


@few
@given(cases(), st.integers(1, 6), st.sampled_from([0.5, 1.0]), st.sampled_from([0.0, 0.5]))
def test_fedbuff_is_its_twin(case: Case, K: int, eta: float, a: float) -> None:
    method = {"name": "fedbuff", "buffer": K, "eta": eta, "a": a}
    check(method, case, FedBuff(case.problem.w0, K=K, eta=eta, a=a))


@few
@given(cases())
def test_fedbuff_at_its_defaults_is_its_twin(case: Case) -> None:
    check("fedbuff", case, FedBuff(case.problem.w0, K=10))


@few
@given(cases())
def test_fedbuff_with_two_at_a_time_is_its_twin(case: Case) -> None:
    check({"name": "fedbuff", "buffer": 3}, case, FedBuff(case.problem.w0, K=3), concurrency=2)


@few
@given(cases(losses=True))
def test_fedbuff_goes_on_without_what_is_lost(case: Case) -> None:
    check({"name": "fedbuff", "buffer": 3}, case, FedBuff(case.problem.w0, K=3))


def test_fedbuff_by_hand() -> None:
    """c = 4 and −8, visits of 1 s and 2 s, K = 2, s(τ) = 1 / (1 + τ).

    1 s   A from 0     Δ = 2                 buffer 2              w = 0
    2 s   B from 0     Δ = −4    τ = 0       buffer 2, −4   →      w = 0 + ½(2 − 4) = −1
          A from 0     Δ = 2     τ = 1       buffer ½·2            w = −1
    3 s   A from −1    Δ = 5/2   τ = 0       buffer 1, 5/2  →      w = −1 + ½(1 + 5/2) = 3/4
    """
    method = {"name": "fedbuff", "buffer": 2, "a": 1.0}
    assert globals_after(method, [[4], [-8]], [[1], [2]], updates=4) == [
        (1, 0, 0, [0]),
        (2, 1, 0, [-1]),
        (2, 0, 1, [-1]),
        (3, 0, 0, [3 / 4]),
    ]
