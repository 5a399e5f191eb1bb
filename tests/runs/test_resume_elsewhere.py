"""A run that began under one executor resumes under any other one; tests/executors/test_ray.py has those with Ray."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import tarry
from tarry.record.result import Result
from tests.helpers.elsewhere import BEGUN, EXACT, RESUMED, SETTINGS, begun_run


@pytest.fixture(scope="module")
def whole() -> tarry.Result:
    return tarry.run(**SETTINGS)


@pytest.mark.parametrize(("first", "second"), [*itertools.product(BEGUN, RESUMED)])
def test_a_run_resumes_under_any_other_executor(first: str, second: str, whole: Result, tmp_path: Path) -> None:
    begun_run(tmp_path / "r", first)
    again = tarry.resume(tmp_path / "r", **RESUMED[second])
    assert again.updates == whole.updates
    assert [p[:2] for p in again.curve] == [p[:2] for p in whole.curve]
    if {first, second} <= EXACT:
        assert again.weights_sha256 == whole.weights_sha256
    assert again.weights is not None
    assert whole.weights is not None
    assert torch.allclose(again.weights, whole.weights, rtol=1e-3, atol=1e-4)


def test_more_workers_alone_ask_for_processes(whole: Result, tmp_path: Path) -> None:
    begun_run(tmp_path / "r", "by default")
    again = tarry.resume(tmp_path / "r", workers=2)
    assert again.weights_sha256 == whole.weights_sha256
