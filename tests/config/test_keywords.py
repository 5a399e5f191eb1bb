from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

import tarry
from tarry.config.components import Choice
from tarry.config.grid import is_grid_setting
from tarry.config.keywords import GridSettings, Named, Settings, SharedSettings
from tarry.config.spec import Spec
from tarry.config.spec import settings as spec_settings
from tarry.config.track_syntax import Tracked
from tarry.metrics import MetricChoice

STORED = {k: v for k, v in get_type_hints(Spec).items() if k not in ("method", "task")}


def alternatives(kind: Any) -> set[Any]:
    return set(get_args(kind)) if get_origin(kind) in (Union, types.UnionType) else {kind}


def accepted(name: str) -> set[Any]:
    """The types that a caller may give for a field of Spec."""
    kinds = alternatives(STORED[name])
    if Choice in kinds:
        kinds = kinds - {Choice} | {str, Mapping[str, Any]}
    if name == "delay":
        kinds |= {Sequence[float | Sequence[float]]}
    if name == "track":
        kinds = kinds - {tuple[Tracked, ...]} | {str, Mapping[str, Any], tarry.Tracker, Sequence[Named | tarry.Tracker]}
    if name == "metric":
        kinds = kinds - {tuple[str | tarry.Metric, ...]} | alternatives(MetricChoice) | {Sequence[MetricChoice]}
    if name == "availability":
        kinds = kinds - {Mapping[str, Any]} | {Mapping[Any, Any]}  # clients are numbers or text
    return kinds


@pytest.mark.parametrize("name", STORED)
def test_a_typed_setting_has_the_type_of_the_field_of_spec(name):
    assert alternatives(get_type_hints(Settings)[name]) == accepted(name)


def test_run_has_every_setting_and_compare_all_but_its_own():
    assert set(get_type_hints(Settings)) == set(STORED)
    assert set(get_type_hints(SharedSettings)) == set(STORED) - {"seed", "workers"}


def test_a_comparison_takes_several_values_of_the_settings_that_may_be_axes():
    single, grid = get_type_hints(SharedSettings), get_type_hints(GridSettings)
    assert set(grid) == set(single)
    several = {name for name in grid if grid[name] != single[name]}
    assert several == {name for name, param in spec_settings().items() if is_grid_setting(param)}
    for name in several:
        kinds = alternatives(single[name])
        assert alternatives(grid[name]) == kinds | {Sequence[single[name]]}


@pytest.mark.parametrize(
    ("function", "kind"), [(tarry.run, Settings), (tarry.compare, GridSettings), (tarry.tune, SharedSettings)]
)
def test_the_signature_names_every_setting_with_its_default(function, kind):
    parameters = inspect.signature(function).parameters
    assert set(get_type_hints(kind)) <= set(parameters)
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    assert parameters["lr"].default == 0.05
    assert parameters["delay"].default == "orthofl-rpi"


def test_every_setting_is_one_line_without_flags():
    table = tarry.settings()
    assert list(table) == list(STORED)
    for setting in table.values():
        line = repr(setting)
        assert line.startswith(f"{setting.name}: ")
        assert len(line) < 120
        assert not any(word in line for word in ("--", "typing.", "collections.", "tarry."))
    assert repr(table).splitlines() == [repr(s) for s in table.values()]
    assert repr(table["executor"]).startswith(
        "executor: Literal['inline', 'pool', 'batched', 'ray', 'auto'] | None = None"
    )
    assert repr(table["local"]).startswith("local: str | Mapping[str, Any] | Method | None = None")
    assert table["delay"].type_name == (
        "str | Mapping[str, Any] | Callable[..., Any] | Sequence[float | Sequence[float]]"
    )
