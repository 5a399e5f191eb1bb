from __future__ import annotations

from math import exp

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from tarry.reproduce.studies.series import confidence, line, mean_of, relative, smooth, thirds


def _by_hand(values: list[float], sigma: float, reach: int) -> list[float]:
    """The sum of the formula, term by term, of a series mirrored at its ends: c b a | a b c | c b a."""
    n, out = len(values), []
    for t in range(n):
        total, mass = 0.0, 0.0
        for i in range(-reach, reach + 1):
            at = (t + i) % (2 * n)
            weight = exp(-0.5 * (i / sigma) ** 2)
            total, mass = total + weight * values[at if at < n else 2 * n - 1 - at], mass + weight
        out.append(total / mass)
    return out


@pytest.mark.parametrize(("n", "sigma"), [(30, 3.0), (7, 5.0), (50, 1.5)])
def test_smoothing_is_the_truncated_gaussian_of_the_formula(n: int, sigma: float) -> None:
    values = np.random.default_rng(3).normal(size=n)
    reach = int(2 * sigma + 0.5)
    assert smooth(values, sigma) == pytest.approx(_by_hand(values.tolist(), sigma, reach))
    assert smooth(values, sigma) == pytest.approx(gaussian_filter1d(values, sigma, truncate=2.0))


def test_smoothing_keeps_a_constant_and_the_length() -> None:
    assert smooth([2.0] * 9, 100.0).tolist() == pytest.approx([2.0] * 9)


def test_relative_losses_run_from_the_best_to_the_worst_at_every_round() -> None:
    found = relative({"a": np.array([1.0, 5.0, 2.0]), "b": np.array([3.0, 1.0, 2.0]), "c": np.array([2.0, 4.0, 2.0])})
    assert {k: v.tolist() for k, v in found.items()} == {"a": [0, 1, 0], "b": [1, 0, 0], "c": [0.5, 0.75, 0]}


def test_means_over_algorithms_and_thirds() -> None:
    mean = mean_of([{"a": np.array([0.0, 1.0, 9.0])}, {"a": np.array([1.0, 0.0])}])
    assert mean["a"].tolist() == [0.5, 0.5]
    assert thirds(np.arange(9.0)) == (1.0, 7.0)


def test_a_line_keeps_its_ends_and_at_most_so_many_points() -> None:
    made = line(list(range(1000)), [2.0 * i for i in range(1000)], points=10)
    assert len(made["x"]) == 10
    assert (made["x"][0], made["x"][-1], made["y"][-1]) == (0, 999, 1998)


def test_the_interval_is_the_gaussian_one() -> None:
    mean, half = confidence([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert half == pytest.approx(2.575829 * 1.2909944 / 2, rel=1e-6)
    assert confidence([2.0]) == (2.0, 0.0)
