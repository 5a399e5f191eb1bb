"""Names that other frameworks give to settings."""

from __future__ import annotations

import inspect

import pytest

import tarry
from tarry.config.other_names import _OTHER_NAMES, suggestion
from tarry.config.spec import settings


def test_every_suggestion_is_a_setting_or_a_parameter_of_a_component() -> None:
    arguments = inspect.signature(tarry.run).parameters
    for name in _OTHER_NAMES:
        group, dot, parameter = name.partition(".")
        if dot:
            registry = getattr(tarry, f"{group}s")
            assert any(parameter in (p.name for p in entry.params) for entry in registry.values()), name
        else:
            assert name in settings() or name in arguments, name


def test_no_other_name_is_a_setting() -> None:
    others = [other for names in _OTHER_NAMES.values() for other in names]
    assert len(others) == len(set(others))
    assert not set(others) & set(settings())


@pytest.mark.parametrize(("name", "meant"), [("Learning-Rate", "lr"), ("epoks", "epochs"), ("zzzzz", None)])
def test_a_name_is_looked_up_and_then_compared(name: str, meant: str | None) -> None:
    assert suggestion(name, settings()) == meant
