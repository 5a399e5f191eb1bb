from __future__ import annotations

import pytest

from tarry.core.search_space import OneOf, Range, parse_dimension


@pytest.mark.parametrize(
    "dimension",
    [Range(0.001, 1.0, log=True), Range(2, 50, integer=True), Range(1, 64, log=True, integer=True), OneOf(1, 2.5, "a")],
)
def test_a_dimension_is_read_back_from_its_text(dimension):
    assert parse_dimension(str(dimension)) == dimension


def test_values_lie_between_the_ends_with_three_digits():
    log = Range(0.001, 1.0, log=True)
    assert [log.at(share) for share in (0.0, 0.25, 0.5, 1.0)] == [0.001, 0.00562, 0.0316, 1.0]
    assert log.levels(4) == [0.001, 0.01, 0.1, 1.0]
    assert Range(2, 50, integer=True).levels(3) == [2, 26, 50]
    assert OneOf(1, 2, 3).at(0.999) == 3


def test_the_ends_of_a_range_are_its_edges():
    log = Range(0.001, 1.0, log=True)
    assert [log.edge(v) for v in (0.001, 0.0013, 0.03, 0.9)] == ["lower", "lower", None, "upper"]
    assert [OneOf(1, 2, 3).edge(v) for v in (1, 2, 3)] == ["lower", None, "upper"]
    assert OneOf(1, 2).edge(1) is None
    assert OneOf("a", "b", "c").edge("a") is None


@pytest.mark.parametrize("text", ["1..0", "0..1:log", "a..b", "1..2:lin", "1,1", "inf..nan"])
def test_texts_that_are_no_dimension_are_rejected(text):
    with pytest.raises(ValueError, match=r"range|list"):
        parse_dimension(text)
