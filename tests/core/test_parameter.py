"""A parameter reads text and checks values."""

from __future__ import annotations

import math
from typing import Literal

import pytest

from tarry.core.parameter import Param


@pytest.mark.parametrize(
    ("kind", "value", "want"),
    [
        (float, 3, 3.0),
        (int, " 12 ", 12),
        (int, -4, -4),
        (float | None, "none", None),
        (float | None, "NULL", None),
        (float | None, "", None),
        (float | None, None, None),
        (int | None, "5", 5),
        (Literal["a", "b"], " B ", "b"),
        (int | Literal["all"], "ALL", "all"),
        (Literal[1, 2], "2", 2),
        (str, "none", "none"),
        *[(bool, t, True) for t in ("true", "Yes", "ON", "1", True)],
        *[(bool, t, False) for t in ("false", "No", "off", "0", False)],
        (list, [1], [1]),
    ],
)
def test_a_value_is_read_as_its_type(kind, value, want):
    got = Param("p", kind, None, "").parse(value)
    assert got == want
    assert type(got) is type(want)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, "1.5", "wants int, got '1.5'"),
        (int, 1.5, "wants int, got 1.5"),
        (int, True, "wants int, got True"),
        (int, None, "wants int, got None"),
        (float, "fast", "wants float, got 'fast'"),
        (float, False, "wants float, got False"),
        (float | None, "nil", "wants float | none, got 'nil'"),
        (float | None, "inf", "wants float | none, got 'inf'"),
        (float | None, math.nan, "wants float | none, got nan"),
        (float, "-inf", "wants float, got '-inf'"),
        (bool, "maybe", "wants bool, got 'maybe'"),
        (bool, 1, "wants bool, got 1"),
        (Literal["a", "b"], "c", "wants a | b, got 'c'"),
        (int | Literal["all"], "some", "wants int | all, got 'some'"),
        (str, 5, "wants str, got 5"),
    ],
)
def test_what_is_not_of_the_type_is_refused_with_type_and_value(kind, value, words):
    with pytest.raises(ValueError) as e:  # noqa: PT011 - the words are compared below
        Param("p", kind, None, "").parse(value)
    assert str(e.value) == words
