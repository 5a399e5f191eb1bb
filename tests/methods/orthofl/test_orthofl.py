"""OrthoFL against its twins: Algorithm 1, Algorithm 2, the ablations and the authors' code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.by_hand import globals_after
from tests.methods.fedasync.reference import FedAsync, polynomial
from tests.methods.orthofl.reference import Algorithm1, Algorithm2, Released
from tests.reference.match import Case, cases, check, few
from tests.reference.problem import Layer, Problem


def whole(problem: Problem) -> list[Layer]:
    return [Layer(slice(0, len(problem.w0)))]


@few
@given(cases())
def test_orthofl_at_its_defaults_is_algorithm_1(case: Case) -> None:
    check("orthofl", case, Algorithm1(case.problem.w0, case.problem.layers))


@few
@given(cases(), st.sampled_from([0.2, 1.0]), st.sampled_from([0.0, 1.0]))
def test_orthofl_with_other_beta_and_a_is_algorithm_1(case: Case, beta: float, a: float) -> None:
    twin = Algorithm1(case.problem.w0, case.problem.layers, beta=beta, a=a)
    check({"name": "orthofl", "beta": beta, "a": a}, case, twin)


@few
@given(cases())
def test_orthofl_projecting_the_whole_vector_is_algorithm_1_with_one_layer(case: Case) -> None:
    check({"name": "orthofl", "projection": "full"}, case, Algorithm1(case.problem.w0, whole(case.problem)))


@few
@given(cases())
def test_orthofl_without_projection_adds_the_whole_shift(case: Case) -> None:
    check({"name": "orthofl", "projection": "none"}, case, Algorithm1(case.problem.w0, None))


@few
@given(cases())
def test_orthofl_on_the_client_is_algorithm_2(case: Case) -> None:
    check({"name": "orthofl", "placement": "client"}, case, Algorithm2(case.problem.w0, case.problem.layers))


@few
@given(cases())
def test_orthofl_is_algorithm_2_wherever_it_calibrates(case: Case) -> None:
    check("orthofl", case, Algorithm2(case.problem.w0, case.problem.layers))


@few
@given(cases(), st.sampled_from([0.0, 0.3, 1.0]))
def test_orthofl_hybrid_is_algorithm_1(case: Case, share: float) -> None:
    method = {"name": "orthofl", "placement": "hybrid", "share": share}
    check(method, case, Algorithm1(case.problem.w0, case.problem.layers))


@few
@given(cases(losses=True), st.sampled_from([0.3, 0.6]))
def test_orthofl_hybrid_by_speed_is_algorithm_1(case: Case, share: float) -> None:
    method = {"name": "orthofl", "placement": "hybrid", "share": share, "capable": "speed"}
    check(method, case, Algorithm1(case.problem.w0, case.problem.layers), concurrency=2)


@pytest.mark.parametrize("placement", ["server", "client", "hybrid"])
@few
@given(cases())
def test_orthofl_with_two_at_a_time_is_algorithm_1(placement: str, case: Case) -> None:
    """Clients wait between an answer and their next start, and some make first contact late."""
    method = {"name": "orthofl", "placement": placement}
    check(method, case, Algorithm1(case.problem.w0, case.problem.layers), concurrency=2)


@pytest.mark.parametrize("placement", ["server", "client", "hybrid"])
@few
@given(cases(losses=True))
def test_orthofl_hands_a_lost_client_the_same_start_again(placement: str, case: Case) -> None:
    method = {"name": "orthofl", "placement": placement}
    check(method, case, Algorithm1(case.problem.w0, case.problem.layers))
    check(method, case, Algorithm2(case.problem.w0, case.problem.layers))


@few
@given(cases())
def test_orthofl_without_calibration_is_the_fedasync_twin(case: Case) -> None:
    method = {"name": "orthofl", "ablation": "no-calibration"}
    check(method, case, FedAsync(case.problem.w0, 0.6, polynomial(0.5)))


@few
@given(cases())
def test_orthofl_without_moving_average_loads_the_calibrated_weights(case: Case) -> None:
    twin = Algorithm1(case.problem.w0, case.problem.layers, ablation="no-average")
    check({"name": "orthofl", "ablation": "no-average"}, case, twin)


@pytest.mark.parametrize("projection", ["layer", "full"])
@few
@given(cases(wide=True))
def test_orthofl_pairwise_leaves_out_the_span_of_the_others_latest_updates(projection: str, case: Case) -> None:
    layers = case.problem.layers if projection == "layer" else whole(case.problem)
    twin = Algorithm1(case.problem.w0, layers, ablation="pairwise")
    method = {"name": "orthofl", "ablation": "pairwise", "projection": projection}
    check(method, case, twin, well_posed=lambda: twin.nearest > 1e-3)


@few
@given(cases())
def test_orthofl_as_released_is_its_twin(case: Case) -> None:
    check({"name": "orthofl", "state": "reference"}, case, Released(case.problem.w0, case.problem.layers))


@few
@given(cases(losses=True))
def test_orthofl_as_released_goes_on_without_what_is_lost(case: Case) -> None:
    later = replace(case, lost=frozenset((m, visit + 1) for m, visit in case.lost))
    check({"name": "orthofl", "state": "reference"}, later, Released(case.problem.w0, case.problem.layers))


@few
@given(cases())
def test_orthofl_as_released_never_hands_out_the_moving_average(case: Case) -> None:
    """With two at a time some make first contact late; they too are given V, for W is only evaluated."""
    twin = Released(case.problem.w0, case.problem.layers)
    check({"name": "orthofl", "state": "reference"}, case, twin, concurrency=2)


def test_orthofl_by_hand() -> None:
    """c_A = (4, 0) in 2 s, c_B = (4, 4) in 1 s; β_t = ½ / s; two parameters in one layer.

    no. 1, 1 s   B from (0, 0)         W_B = (2, 2)   s = 1, β_t = ½   W = (1, 1)
                 Δ = (0, 0)                                           B starts from (2, 2)
    no. 2, 2 s   A from (0, 0)         W_A = (2, 0)   s = 2, β_t = ¼   W = ¾(1, 1) + ¼(2, 0) = (5/4, 3/4)
                 Δ = (1, 1), Δ_A = (2, 0), Δ⊥ = (0, 1)                 A starts from (2, 1), not (3, 1)
    no. 3, 2 s   B from (2, 2)         W_B = (3, 3)   s = 2, β_t = ¼   W = ¾(5/4, 3/4) + ¼(3, 3) = (27/16, 21/16)
                 Δ = (¼, −¼) ⊥ Δ_B = (1, 1)                            B starts from (13/4, 11/4)
    no. 4, 3 s   B from (13/4, 11/4)   W_B = (29/8, 27/8)   s = 1, β_t = ½    W = (85/32, 75/32)
    no. 5, 4 s   A from (2, 1)         W_A = (3, ½)   s = 3, β_t = 1/6  W = (5·85/32 + 3, 5·75/32 + ½) / 6
    """
    arrivals = globals_after({"name": "orthofl", "beta": 0.5, "a": 1.0}, [[4, 0], [4, 4]], [[2], [1]], updates=5)
    assert arrivals[:4] == [
        (1, 1, 0, [1, 1]),
        (2, 0, 1, [5 / 4, 3 / 4]),
        (2, 1, 1, [27 / 16, 21 / 16]),
        (3, 1, 0, [85 / 32, 75 / 32]),
    ]
    assert arrivals[4][:3] == (4, 0, 2)
    assert arrivals[4][3] == pytest.approx([(5 * 85 / 32 + 3) / 6, (5 * 75 / 32 + 0.5) / 6], rel=1e-14)


def test_orthofl_leaves_a_lone_client_to_itself() -> None:
    """Nobody else, no shift: the client walks 0 → 2 → 3 → 7/2 → 15/4 towards 4 as if never interrupted, and W follows.

    β_t = ½: W = 1, then ½(1 + 3) = 2, ½(2 + 7/2) = 11/4, ½(11/4 + 15/4) = 13/4
    """
    arrivals = globals_after({"name": "orthofl", "beta": 0.5}, [[4.0]], [[1.0]], updates=4, examples=(1,))
    assert [w for *_, w in arrivals] == [[1], [2], [11 / 4], [13 / 4]]


def test_orthofl_as_released_by_hand() -> None:
    """The case of `test_orthofl_by_hand`, with the second model V and W's first value replaced (α = 0.5 (d + 1)^(−1)).

    no. 1   B from (0, 0)   x = (2, 2)   V = x + 0 = (2, 2)                                    W = (2, 2)
    no. 2   A from (0, 0)   x = (2, 0)   V − V_A = (2, 2), x − V_A = (2, 0): V = (2, 0) + (0, 2) = (2, 2)
                                         d = 1, α = ¼                                          W = (2, 3/2)
    no. 3   B from (2, 2)   x = (3, 3)   V − V_B = (0, 0): V = (3, 3);   d = 1, α = ¼           W = (9/4, 15/8)
    no. 4   B from (3, 3)   x = (7/2, 7/2)                               d = 0, α = ½           W = (23/8, 43/16)
    """
    method = {"name": "orthofl", "state": "reference", "beta": 0.5, "a": 1.0}
    arrivals = globals_after(method, [[4, 0], [4, 4]], [[2], [1]], updates=4)
    assert [w for *_, w in arrivals] == [[2, 2], [2, 3 / 2], [9 / 4, 15 / 8], [23 / 8, 43 / 16]]
