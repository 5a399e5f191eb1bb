"""OrthoFL against its twins: Algorithm 1, Algorithm 2, the ablations and the authors' code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
