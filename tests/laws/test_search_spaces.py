"""Every declared search space has parameters of its method, with values that the method takes."""

from __future__ import annotations

import pytest

import tarry
from tarry.core.search_space import OneOf

SPACES = {name: entry.space for name, entry in tarry.methods.items() if entry.space}


@pytest.mark.parametrize("name", SPACES)
def test_a_space_names_parameters_and_its_ends_make_the_method(name):
    entry = tarry.methods[name]
    assert set(entry.space) <= {p.name for p in entry.params}
    for parameter, dimension in entry.space.items():
        is_list = isinstance(dimension, OneOf)
        values = dimension.values if is_list else (dimension.low, dimension.at(0.5), dimension.high)
        for value in values:
            assert isinstance(entry(**{parameter: value}), tarry.Method)
