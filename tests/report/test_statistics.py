"""Statistics by hand, against scipy, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tarry.report.statistics import bootstrap_interval, holm, least_p, least_pairs, pairs_needed, signed_rank

# Wilcoxon: all of n pairs positive → 2⁻ⁿ. Of 4 pairs with ranks 1..4, W = 9 (rank 1 negative): sums ≥ 9 are 10, 9.


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], 1 / 32),
        ([-1.0, 2.0, 3.0, 4.0], 2 / 16),
        ([1.0, -2.0], 3 / 4),  # W = 1: of 0, 1, 2, 3 all but 0
        ([0.0, 0.0, 3.0], 1 / 2),  # zeros are left out
        ([1.0, 1.0, -1.0], 4 / 8),  # ties: ranks 2, 2, 2, W = 4; two or three of three signs
        ([], 1.0),
    ],
)
def test_signed_rank_by_hand(differences: list[float], p: float) -> None:
    assert signed_rank(differences) == pytest.approx(p)


def test_signed_rank_is_scipys() -> None:
    for seed in range(5):
        d = np.random.default_rng(seed).normal(0.3, 1.0, 15)
        wanted = scipy.stats.wilcoxon(d, alternative="greater", method="exact").pvalue
        assert signed_rank(d.tolist()) == pytest.approx(wanted)


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.02, 0.04 of three: 0.03, 0.04, 0.04
    found = holm({"a": 0.04, "b": 0.01, "c": 0.02})
    assert found == {"a": pytest.approx(0.04), "b": pytest.approx(0.03), "c": pytest.approx(0.04)}
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}


def test_the_two_sided_test_is_scipys_and_does_not_depend_on_the_direction() -> None:
    for seed in range(5):
        d = np.random.default_rng(seed).normal(0.3, 1.0, 12)
        wanted = scipy.stats.wilcoxon(d, alternative="two-sided", method="exact").pvalue
        assert signed_rank(d.tolist(), "two-sided") == pytest.approx(wanted)
        assert signed_rank((-d).tolist(), "two-sided") == pytest.approx(wanted)


def test_many_pairs_are_tested_by_the_normal_approximation() -> None:
    d = np.random.default_rng(0).normal(0.2, 1.0, 101)
    exact = scipy.stats.wilcoxon(d, alternative="greater", method="exact").pvalue
    assert signed_rank(d.tolist()) == pytest.approx(exact, rel=0.05)


def test_p_cannot_be_below_two_to_the_minus_n() -> None:
    for n in (1, 3, 6):
        assert signed_rank([1.0 + i for i in range(n)]) == least_p(n, "greater") == 2.0**-n
        assert signed_rank([1.0 + i for i in range(n)], "two-sided") == least_p(n, "two-sided") == 2.0 ** (1 - n)


@pytest.mark.parametrize(("level", "greater", "two_sided"), [(0.05, 5, 6), (0.05 / 6, 7, 8), (0.5, 2, 3)])
def test_the_least_number_of_pairs_for_a_level(level: float, greater: int, two_sided: int) -> None:
    """2^-5 = 0.031 is below 0.05 and 2^-4 is not; 2^-1 is not below 0.5."""
    assert (least_pairs(level, "greater"), least_pairs(level, "two-sided")) == (greater, two_sided)


def test_a_bootstrap_interval_is_a_function_of_its_seed_and_covers_the_mean() -> None:
    random = np.random.default_rng(1)
    samples = [random.normal(1.0, 1.0, 40).tolist() for _ in range(200)]
    assert bootstrap_interval(samples[0]) == bootstrap_interval(samples[0]) != bootstrap_interval(samples[0], seed=1)
    inside = [low < 1.0 < high for low, high in map(bootstrap_interval, samples)]
    assert 0.9 < np.mean(inside) < 0.99
    assert bootstrap_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


@pytest.mark.parametrize(("effect", "level"), [(0.5, 0.05), (1.0, 0.05 / 6), (2.0, 0.05)])
def test_the_number_of_pairs_that_are_needed_gives_the_power(effect: float, level: float) -> None:
    random = np.random.default_rng(2)
    d = random.normal(0.0, 1.0, 8)
    d = (d - d.mean()) / d.std(ddof=1) + effect
    n = pairs_needed(d.tolist(), level, "two-sided")
    assert n is not None
    found = [signed_rank(random.normal(effect, 1.0, n).tolist(), "two-sided") < level for _ in range(300)]
    assert np.mean(found) > 0.72
    if n > least_pairs(level, "two-sided"):
        fewer = [signed_rank(random.normal(effect, 1.0, n - n // 4).tolist(), "two-sided") < level for _ in range(300)]
        assert np.mean(fewer) < 0.8


def test_the_number_of_pairs_is_not_named_where_it_means_nothing() -> None:
    assert pairs_needed([0.1, 0.2], 0.05, "two-sided") is None  # too few to know the spread
    assert pairs_needed([1.0, -1.0, 0.0], 0.05, "two-sided") is None  # no direction
    assert pairs_needed([-1.0, -1.1, -0.9], 0.05, "greater") is None  # the wrong one
    assert pairs_needed([1.0, -1.0, 0.001], 0.05, "two-sided") is None  # more than ten thousand
    assert pairs_needed([1.0, 1.0, 1.0], 0.05, "two-sided") == least_pairs(0.05, "two-sided")
