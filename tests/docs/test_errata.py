"""The formulas of docs/errata.md: what is printed fails, and what is said instead holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.reproduce import catalog

positive = st.floats(1e-3, 1e3)
length = st.floats(0, 1e3)


@given(G=positive, L=positive, share=st.floats(1e-3, 1), delta=length, s=length)
def test_the_right_side_of_orthofls_eq_19_is_negative(G: float, L: float, share: float, delta: float, s: float) -> None:
    eta = share / L
    right = eta * (1 - L * eta / 2) * max(0.0, G - L * delta) ** 2 - eta * (1 + L * eta / 2) * (G + L * s) ** 2
    assert right < 0


def test_the_condition_fails_also_where_orthofls_start_is_better() -> None:
    """F = ½ w² at w = 1: the baseline starts at 2, OrthoFL at ½; one step of rate ½."""
    after = [0.5 * (w - 0.5 * w) ** 2 for w in (2.0, 0.5)]
    assert after[1] < after[0]
    right = 0.5 * 0.75 * max(0.0, 1 - 0.5) ** 2 - 0.5 * 1.25 * (1 + 1.0) ** 2
    assert right < 0


@pytest.mark.parametrize("t", [0.1, 0.5, 0.8])
def test_asyncmanifolds_curve_has_coefficients_below_one_and_beziers_sum_to_one(t: float) -> None:
    assert (1 - t) ** 2 + t * (1 - t) + t**2 == pytest.approx(1 - t * (1 - t))
    assert (1 - t) ** 2 + 2 * t * (1 - t) + t**2 == pytest.approx(1)


def test_a_mean_ratio_above_one_is_no_bound_at_every_point() -> None:
    """A curve below the line in between, with a loss of 1 at both ends: the mean ratio is 1.0275 and more."""
    places = np.linspace(0, 1, 101)
    line, curve = np.ones(101), 1 - 0.2 * places * (1 - places)
    q = line.mean() / curve.mean()
    assert q > 1.0275
    assert (curve > line / q).any()


def test_surgery_divides_by_the_squared_length() -> None:
    a, b = np.array([-1.0, 2.0, 0.5]), np.array([3.0, 1.0, -2.0])
    assert (a - (a @ b) / (b @ b) * b) @ b == pytest.approx(0)
    assert abs((a - (a @ b) / np.linalg.norm(b) * b) @ b) > 1


def test_fedsols_eq_12_holds_with_the_unit_gradient_and_not_with_the_perturbation() -> None:
    """L = ½ wᵀHw: both sides agree to first order in ρ with (ρ/2) ĝ, and differ by a term of order ρ with (ρ/2) ρ ĝ."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    H, w, g_p = root @ root.T, rng.normal(size=4), rng.normal(size=4)
    unit = g_p / np.linalg.norm(g_p)

    def errors(rho: float) -> tuple[float, float]:
        left = -(H @ w) @ (H @ (w + rho * unit))
        with_unit, with_epsilon = (-np.sum((H @ (w + rho / 2 * v)) ** 2) for v in (unit, rho * unit))
        return abs(left - with_unit), abs(left - with_epsilon)

    (unit_1, eps_1), (unit_2, eps_2) = errors(1e-3), errors(5e-4)
    assert unit_1 / unit_2 == pytest.approx(4, rel=0.01)  # of second order
    assert eps_1 / eps_2 == pytest.approx(2, rel=0.01)  # of first order: the term is missing


def test_fed_ogds_printed_step_goes_away_from_the_clients() -> None:
    w, eta_l, eta_g = 1.0, 0.1, 1.0
    w_k = w - eta_l * w
    change = (w_k - w) / eta_l
    assert w - eta_g * change == pytest.approx(2.0)
    assert w + eta_g * eta_l * change == pytest.approx(w_k)


def test_the_softmax_of_mean_logits_is_not_the_mean_of_softmaxes() -> None:
    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp(z)
        return e / e.sum()

    one, two = np.array([3.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])
    of_logits, of_outputs = softmax((one + two) / 2), (softmax(one) + softmax(two)) / 2
    product = np.sqrt(softmax(one) * softmax(two))
    assert of_logits == pytest.approx(product / product.sum())
    assert np.abs(of_logits - of_outputs).max() > 0.02


def test_orthofls_mean_gains_and_speed_up_are_those_of_its_table_2() -> None:
    paper = catalog.find("orthofl/table2").paper
    accuracy, time = paper["accuracy"], paper["time"]["orthofl"]

    def gain(row: str) -> float:
        return float(np.mean([accuracy["orthofl"][c] - accuracy[row][c] for c in accuracy["orthofl"]]))

    gains = {row: round(gain(row), 1) for row in ("fedavg", "fedprox", "fedadam")}
    assert gains == {"fedavg": 12.6, "fedprox": 13.4, "fedadam": 7.4}
    assert np.mean([gain(row) for row in gains]) == pytest.approx(11.1, abs=0.05)
    assert np.mean([1 / t for t in time.values()]) == pytest.approx(11.9, abs=0.05)


def test_fedogds_headline_reductions_are_those_against_mifa_in_one_case() -> None:
    for table, case, reduction in (("table1", "L2", 93.52), ("table2", "L3", 74.94), ("table3", "L3", 99.68)):
        variance = catalog.find(f"fedogd/{table}").paper["variance_test"]
        assert 100 * (1 - variance["fedogd"][case] / variance["mifa"][case]) == pytest.approx(reduction, abs=0.01)
    accuracy = catalog.find("fedogd/table2").paper["accuracy"]
    assert accuracy["fedogd"]["L1"] / accuracy["mifa"]["L1"] == pytest.approx(1.0537, abs=1e-4)
