from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.tasks.data.apportion import apportion


def test_what_is_missing_after_flooring_goes_to_the_largest_remainders() -> None:
    # exact shares of 10: 1.43, 2.86, 5.71
    assert apportion([1, 2, 4], 10).tolist() == [1, 3, 6]


def test_of_equal_remainders_the_first_wins() -> None:
    assert apportion([1, 1, 1, 1], 6).tolist() == [2, 2, 1, 1]


def test_nothing_is_dealt_of_nothing() -> None:
    assert apportion([], 0).tolist() == []
    assert apportion([3, 4], 0).tolist() == [0, 0]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(lambda w: sum(w) > 1e-3), st.integers(0, 10**6))
def test_parts_add_up_and_are_within_one_of_their_share(weights: list[float], total: int) -> None:
    parts = apportion(weights, total)
    exact = total * np.array(weights) / sum(weights)
    assert parts.sum() == total
    assert (np.abs(parts - exact) <= 1 + 1e-6).all()
