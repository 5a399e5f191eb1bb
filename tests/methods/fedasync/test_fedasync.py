"""FedAsync against its twin and by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.by_hand import globals_after
from tests.methods.fedasync.reference import FedAsync, constant, hinge, polynomial
from tests.methods.fedprox.reference import descend_held
from tests.reference.match import Case, cases, check, few


@few
@given(cases())
def test_fedasync_at_its_defaults_is_its_twin(case: Case) -> None:
    check("fedasync", case, FedAsync(case.problem.w0, 0.6, polynomial(0.5)))


@few
@given(cases(), st.sampled_from([0.1, 1.0]), st.sampled_from([0.0, 0.3, 1.0]))
def test_fedasync_polynomial_is_its_twin(case: Case, alpha: float, a: float) -> None:
    method = {"name": "fedasync", "alpha": alpha, "staleness": "polynomial", "a": a}
    check(method, case, FedAsync(case.problem.w0, alpha, polynomial(a)))


@few
@given(cases())
def test_fedasync_constant_is_its_twin(case: Case) -> None:
    check({"name": "fedasync", "staleness": "constant"}, case, FedAsync(case.problem.w0, 0.6, constant))


@few
@given(cases(), st.sampled_from([0.0, 1.0, 2.5]))
def test_fedasync_hinge_is_its_twin(case: Case, b: float) -> None:
    method = {"name": "fedasync", "staleness": "hinge", "a": 2.0, "b": b}
    check(method, case, FedAsync(case.problem.w0, 0.6, hinge(2.0, b)))


@few
@given(cases())
def test_fedasync_hinge_has_the_papers_slope_and_corner_by_default(case: Case) -> None:
    """a = 10 and b = 4, as in the experiments of Xie et al. 2019."""
    check({"name": "fedasync", "staleness": "hinge"}, case, FedAsync(case.problem.w0, 0.6, hinge(10.0, 4.0)))


@few
@given(cases(), st.sampled_from([0.1, 2.0]))
def test_fedasync_with_a_proximal_term_is_its_twin(case: Case, mu: float) -> None:
    problem = case.problem
    check(
        {"name": "fedasync", "mu": mu},
        case,
        FedAsync(problem.w0, 0.6, polynomial(0.5)),
        train=lambda m, w: descend_held(problem, m, w, steps=case.steps, lr=case.lr, mu=mu),
    )


@few
@given(cases())
def test_fedasync_with_two_at_a_time_is_its_twin(case: Case) -> None:
    check("fedasync", case, FedAsync(case.problem.w0, 0.6, polynomial(0.5)), concurrency=2)


@few
@given(cases(losses=True))
def test_fedasync_goes_on_without_what_is_lost(case: Case) -> None:
    check("fedasync", case, FedAsync(case.problem.w0, 0.6, polynomial(0.5)))


def test_fedasync_by_hand() -> None:
    """c = 4 and −8, visits of 1 s and 2 s, α_τ = ½ / (τ + 1).

    1 s   A from 0      w_A = 2        τ = 0, α = ½     w = ½·0 + ½·2 = 1
    2 s   B from 0      w_B = −4       τ = 1, α = ¼     w = ¾·1 + ¼·(−4) = −¼         (B was handed out before A)
          A from 1      w_A = 5/2      τ = 1, α = ¼     w = ¾·(−¼) + ¼·5/2 = 7/16
    3 s   A from 7/16   w_A = 71/32    τ = 0, α = ½     w = ½·7/16 + ½·71/32 = 85/64
    """
    method = {"name": "fedasync", "alpha": 0.5, "a": 1.0}
    assert globals_after(method, [[4], [-8]], [[1], [2]], updates=4) == [
        (1, 0, 0, [1]),
        (2, 1, 1, [-1 / 4]),
        (2, 0, 1, [7 / 16]),
        (3, 0, 0, [85 / 64]),
    ]
