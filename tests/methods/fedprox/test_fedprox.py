"""FedProx against its twin and by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.by_hand import globals_after
from tests.methods.fedavg.reference import FedAvg
from tests.methods.fedprox.reference import descend_held
from tests.reference.match import Case, cases, check, few


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


def test_fedprox_by_hand() -> None:
    """μ = 1 and two steps: after the first, half-way to c, the pull back equals the pull on; the second does nothing.

    A: 0 → 2, then 2 − ½((2 − 4) + 1·(2 − 0)) = 2.   B: 0 → −4, and stays.   w = ½·2 − ½·4 = −1
    """
    method = {"name": "fedprox", "mu": 1.0}
    assert globals_after(method, [[4], [-8]], [[1], [1]], updates=2, steps=2)[-1] == (1, 1, 0, [-1])
