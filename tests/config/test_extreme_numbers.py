"""Every number that a user can give, at extreme values: a run, or one error that names the flag and the value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import pytest
import torch

import tarry
from tarry.config.components import REGISTRIES
from tarry.config.number_errors import errors_of_extreme_numbers, extreme_numbers
from tarry.config.spec import Spec, settings
from tarry.core.errors import TarryError, TrainingFailed
from tarry.core.parameter import LARGEST_FLOAT, LARGEST_INT, Param
from tarry.core.registry import Entry
from tarry.runs.run import run_spec
from tarry.tasks.models.registry import model_for, models
from tarry.training.model_size import errors_of_model_size
from tests.helpers.commands import time_limit

VALUES = (
    *("0", "-1", "1e-45", "1e-308", "1e19", "3e37", "1e38", "-1e38", "1e39", "1e308", "inf", "nan", "9" * 5000),
    *(10**6, 10**9, LARGEST_INT, 2**31, 2**32, 2**63, 10**12, 999_999_999_999, 10**400),
)
RUN = {"clients": 3, "epochs": 1, "delay": "constant", "updates": 3}
TASK = {"name": "digits", "limit": 60, "hidden": 4}
BUDGETS = ("updates", "rounds", "epochs", "steps", "personalize")  # large ones are long runs
SECONDS = 10
MODEL_VALUES = [value for value in VALUES if value != 10**6]  # which fits the memory, and is slow
OTHERS: Mapping[str, Mapping[str, Any]] = {"tifl": {"tiers": 3}}
REQUIRED: Mapping[str, Mapping[str, Any]] = {"textcnn": {"vocabulary": 50}}


def is_number(param: Param) -> bool:
    return any(name in ("int", "float") for name in param.type_name.split(" | "))


def settings_of_numbers() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, param in settings().items():
        for value in VALUES if is_number(param) else ():
            if name not in BUDGETS or not isinstance(value, int):
                yield f"--{name.replace('_', '-')}", {name: value}


def parameters(kind: str, entry: Entry[Any], **others: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for param in () if any(p.required for p in entry.params) else entry.params:
        for value in VALUES if is_number(param) else ():
            choice = {"name": entry.name, **OTHERS.get(entry.name, {}), param.name: value}
            yield f"--{kind}.{param.name}", {**others, kind: choice}


def grid() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (flag, settings) of every number at every value."""
    yield from settings_of_numbers()
    for kind, method in {"method": "", "partition": "fedavg", "delay": "fedbuff"}.items():
        for entry in REGISTRIES[kind].values():
            yield from parameters(kind, entry, **({"method": method} if method else {}))
    for entry in (e for e in REGISTRIES["unlabeled"].values() if e.name != "stl10"):  # its data may not be here
        yield from parameters("unlabeled", entry, method="fedecho")
    for entry in REGISTRIES["manifold"].values():
        yield from parameters("manifold", entry, method="fedasync")
    for value in MODEL_VALUES:
        yield "--task.hidden", {"task": {**TASK, "hidden": value}}
    yield from (("--task.limit", {"task": {"name": "digits", "limit": value}}) for value in VALUES)


GRID = list(grid())


def run_or_fail_cleanly(flag: str, given: Mapping[str, Any]) -> str:
    """Return the error of a run, or no text."""
    with time_limit(SECONDS):
        try:
            spec = Spec.of({"task": TASK, **RUN, **given})
            run_spec(spec)
        except TarryError as e:
            text = str(e)
        else:
            return ""
    assert flag in text or "--delay" in text, f"{given}: {text}"
    assert "Traceback" not in text
    assert all(len(line) < 400 for line in text.splitlines())
    return text


def check(cases: list[tuple[str, Mapping[str, Any]]]) -> None:
    failures = []
    for flag, given in cases:
        try:
            run_or_fail_cleanly(flag, given)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            failures.append(f"{given}: {type(e).__name__}: {e}")
    assert not failures, "\n".join(failures)


def test_all_numbers_of_settings_and_components():
    assert len(GRID) > 2500
    check(GRID)


@pytest.mark.parametrize("name", models)
def test_the_numbers_of_a_model(name):
    entry, failures = models.find(name), []
    shape = next(s for s in ((3, 32, 32), (9, 128), (20,)) if _fits(name, s))
    for param in entry.params:
        for value in MODEL_VALUES if is_number(param) else ():
            given = {**REQUIRED.get(name, {}), param.name: value}
            try:
                with time_limit(SECONDS), errors_of_model_size("--task mine"):
                    model_for(name, shape, 10, **given)()
            except TarryError:
                continue
            except Exception as e:
                failures.append(f"{given}: {type(e).__name__}: {e}")
    assert not failures, "\n".join(failures)


def _fits(name: str, shape: tuple[int, ...]) -> bool:
    try:
        model_for(name, shape, 10, **REQUIRED.get(name, {}))
    except TarryError:
        return False
    return True


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lr": "1e39"}, ["--lr 1e39", "between -1e+38 and 1e+38"]),
        ({"lr": 10**400}, ["--lr 1000", "..."]),
        ({"lr": 10**5000}, ["--lr an integer of 16,610 bits"]),
        ({"weight_decay": "1e39"}, ["--weight-decay 1e39", "between"]),
        ({"workers": 4294967296}, ["--workers 4294967296", "between -4096 and 4096"]),
        ({"clients": 2**31}, ["--clients 2147483648", "between"]),
        ({"method": {"name": "fedprox", "mu": "1e39"}}, ["--method.mu 1e39", "between"]),
        ({"method": {"name": "fedadam", "eps": 3e37}}, ["--method.eps 3e+37", "it cannot be computed with", "nearer"]),
        ({"task": {"name": "digits", "hidden": 999_999_999_999}}, ["--task.hidden 999999999999", "between"]),
        ({"task": {**TASK, "hidden": 2**31 - 1}}, ["--task digits ", "--task.hidden 2147483647: ", "GB"]),
        ({"eval_every": 1e-45}, ["--eval-every 1e-45", "10,000,000 evaluations", "or more"]),
        ({"eval_every": 1e-45, "time": 100.0}, ["--eval-every 1e-45", "10,000,000 evaluations", "or more"]),
        ({"method": "fedecho", "unlabeled": {"name": "mixup", "samples": 2**31 - 1}}, ["--unlabeled.samples", "GB"]),
    ],
)  # fmt: skip
def test_the_error_names_flag_value_and_remedy(given, words):
    flag = words[0].split()[0]
    text = run_or_fail_cleanly(flag, given)
    assert len(text.splitlines()) == 1
    for word in words:
        assert word in text


def test_seeds_and_budgets_may_have_64_bits():
    spec = Spec.of({"seed": 2**63, "updates": 2**63, "rounds": 2**63})
    assert spec.seed == spec.updates == spec.rounds == 2**63
    with pytest.raises(tarry.BadInput, match="seed"):
        Spec.of({"seed": 2**63 + 1})


def test_a_float_of_the_largest_size_is_accepted():
    assert Spec.of({"lr": LARGEST_FLOAT}).lr == LARGEST_FLOAT


def test_extreme_numbers_are_found_by_flag():
    given = {"lr": 1e30, "momentum": 0.5, "checkpoint_every": 1e-20, "method": {"name": "fedprox", "mu": 1e12}}
    assert extreme_numbers(Spec.of(given)) == {"method.mu": 1e12, "lr": 1e30, "checkpoint-every": 1e-20}


def test_an_error_of_a_worker_names_the_flags():
    text = "training failed in process 1: RuntimeError: value cannot be converted to type float without overflow"
    spec = Spec.of({"lr": 1e30})
    with pytest.raises(tarry.BadInput, match=r"--lr 1e\+30: it cannot"), errors_of_extreme_numbers(spec):
        raise TrainingFailed(text)


def test_an_error_about_something_else_passes():
    def broken(client: int, visit: int) -> float:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        tarry.run("fedasync", "digits", delay=broken, clients=3, updates=3, lr=1e30)


def test_an_error_without_an_extreme_number_passes():
    def broken(client: int, visit: int) -> float:
        raise OverflowError("a bug")

    with pytest.raises(OverflowError, match="a bug"):
        tarry.run("fedasync", "digits", delay=broken, clients=3, updates=3)


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 10), (1 << 30,) * 3])
def test_a_model_beyond_the_memory_is_refused_before_it_is_allocated(shape):
    too_large = r"--task mine: 2 copies of the model: at least .* GB are needed"
    with pytest.raises(tarry.BadInput, match=too_large), errors_of_model_size("--task mine"):
        torch.empty(shape)
    assert prod(shape) > 2**49


def test_other_errors_of_a_model_pass():
    with pytest.raises(RuntimeError, match="a bug"), errors_of_model_size("mine"):
        raise RuntimeError("a bug")
