"""Random settings: valid ones run and keep their budget, one wrong among them is named, and nothing ends otherwise.

The suite runs a few hundred examples, the same ones every time; `make test-fuzz` runs TARRY_FUZZ of each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tarry
from tarry.config.components import REGISTRIES
from tarry.config.spec import Spec
from tarry.config.spec import settings as known_settings
from tarry.core.errors import BadInput, TarryError
from tarry.core.parameter import Param
from tarry.runs.run import run_spec
from tests.helpers.commands import time_limit

TASK = {"name": "digits", "limit": 80, "hidden": 4}
MANY = int(os.environ.get("TARRY_FUZZ", "3000"))
#: values with which a run of a few clients and updates is possible
VALID: Mapping[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**63 - 1),
    "min_samples": st.integers(0, 3),
    "time": st.floats(1.0, 20.0),
    "rounds": st.integers(1, 4),
    "target": st.floats(0.01, 1.0),
    "eval_every": st.floats(0.5, 1e6),
    "batch": st.one_of(st.integers(1, 100), st.just("all")),
    "optimizer": st.sampled_from(["sgd", "adam", "adamw"]),
    "lr": st.floats(1e-9, 1.0),
    "lr_decay": st.floats(0.1, 1.0),
    "lr_schedule": st.sampled_from(["constant:warmup=2", "cosine:length=3,warmup=1", "linear:by=time,length=9"]),
    "clip_norm": st.floats(1e-6, 1e6),
    "clip_value": st.floats(1e-6, 1e6),
    "momentum": st.floats(0.0, 0.95),
    "weight_decay": st.floats(0.0, 0.5),
    "failure_rate": st.floats(0.0, 0.8),
    "dtype": st.sampled_from(["float32", "float64"]),
    "executor": st.sampled_from(["inline", "batched"]),
    "lookahead": st.integers(0, 3),
    "strict": st.booleans(),
    "gate": st.booleans(),
    "norm_multiple": st.one_of(st.just(0.0), st.floats(1.01, 100.0)),
    "norm_bound": st.floats(1e-6, 1e6),
    "max_examples": st.integers(1, 100),
    "quarantine": st.floats(0.0, 1e4),
    "loss_multiple": st.one_of(st.just(0.0), st.floats(1.01, 100.0)),
    "personalize": st.integers(0, 1),
    "diagnose": st.booleans(),
    "cache_limit": st.floats(1e-3, 100.0),
    "proofs": st.integers(0, 4),
    "partition": st.sampled_from(["dirichlet", "iid"]),
    "delay": st.sampled_from(["constant", "exponential", "orthofl-rpi"]),
    "concurrency": st.integers(1, 3),
}
#: values that no setting of a number takes, and what no choice is called
WRONG = st.one_of(
    st.sampled_from([-1, "x", "", "nan", "inf", [], {}, [1], "1e400", 10**400, -(10**30), "\x1b[2J", "[/red]", "0x1"]),
    st.floats(max_value=-1e-3, allow_nan=False),
)
METHODS = sorted(name for name, entry in REGISTRIES["method"].items() if not any(p.required for p in entry.params))


@st.composite
def valid_settings(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(sorted(VALID)), max_size=6))
    local = draw(st.sampled_from([{}, {"epochs": 1}, {"steps": 2}]))
    budget = {"task": TASK, "clients": 3, "updates": draw(st.integers(1, 8)), "method": draw(st.sampled_from(METHODS))}
    found = {**budget, "time": 1e4, "delay": "constant", **local, **{name: draw(VALID[name]) for name in sorted(names)}}
    if "lr_schedule" in found:
        found.pop("lr_decay", None)
    if found.get("optimizer", "sgd") != "sgd":
        found.pop("momentum", None)
    return {"epochs": 1, **found} if "steps" not in found else found


def _values(param: Param) -> st.SearchStrategy[Any]:
    """Values of a parameter's type, ordinary and extreme."""
    kinds = {
        "int": st.one_of(st.integers(-3, 12), st.integers()),
        "float": st.one_of(st.floats(0.0, 1.0), st.floats(allow_nan=True), st.sampled_from([1e-300, 1e-45, 1e38])),
        "bool": st.booleans(),
        "str": st.text(max_size=8),
    }
    fitting = [kinds[name] for name in param.type_name.split(" | ") if name in kinds]
    return st.one_of(*fitting, st.just(param.default)) if fitting else st.just(param.default)


@st.composite
def method_with_parameters(draw: st.DrawFn) -> dict[str, Any]:
    entry = REGISTRIES["method"][draw(st.sampled_from(METHODS))]
    chosen = (
        draw(st.lists(st.sampled_from(entry.params), max_size=3, unique_by=lambda p: p.name)) if entry.params else []
    )
    return {"name": entry.name, **{p.name: draw(_values(p)) for p in chosen}}


def attempt(chosen: Mapping[str, Any]) -> tarry.Result | TarryError:
    """Run; an error is one of the library's and names a flag."""
    with time_limit(60):
        try:
            return run_spec(Spec.of(chosen))
        except TarryError as e:
            error = e
    assert "--" in str(error)
    assert len(str(error)) < 20_000
    return error


def check_valid(chosen: Mapping[str, Any]) -> None:
    found = attempt(chosen)
    if isinstance(found, BadInput):
        assert all(p.startswith("--") for p in found.problems)
    elif isinstance(found, tarry.Result):
        assert found.updates <= chosen["updates"]
        assert found.virtual_time <= chosen["time"]
        assert found.n_clients == 3


def check_wrong(chosen: Mapping[str, Any], name: str, value: Any) -> None:
    wrong = {**chosen, name: value}
    try:
        known_settings()[name].parse(value)
    except (ValueError, TypeError):
        with pytest.raises(BadInput) as e:
            Spec.of(wrong)
        assert any(f"--{name.replace('_', '-')}" in p for p in e.value.problems)


def few(n: int) -> settings:
    return settings(max_examples=n, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@few(120)
@given(valid_settings())
def test_valid_settings_run(chosen):
    check_valid(chosen)


@few(200)
@given(valid_settings(), st.sampled_from(sorted(set(known_settings()) - set(REGISTRIES))), WRONG)
def test_a_wrong_setting_is_named(chosen, name, value):
    check_wrong(chosen, name, value)


@few(120)
@given(method_with_parameters())
def test_parameters_of_methods(method):
    attempt({"task": TASK, "clients": 3, "updates": 4, "epochs": 1, "delay": "constant", "method": method})


@pytest.mark.fuzz
@few(MANY)
@given(valid_settings())
def test_many_valid_settings(chosen):
    check_valid(chosen)


@pytest.mark.fuzz
@few(MANY)
@given(method_with_parameters())
def test_parameters_of_methods_more(method):
    attempt({"task": TASK, "clients": 3, "updates": 4, "epochs": 1, "delay": "constant", "method": method})
