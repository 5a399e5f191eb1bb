"""Failed training is reported when it happens, once for each kind, and in the result."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import tarry
from tarry.runs.monitor import chance_limit

SETTINGS: dict[str, Any] = {"clients": 5, "delay": "constant:seconds=10", "epochs": 1, "eval_every": 10.0}


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tarry"]


def run(caplog: pytest.LogCaptureFixture, **settings: Any) -> tuple[tarry.Result, list[str]]:
    with caplog.at_level(logging.WARNING, logger="tarry"), pytest.warns(tarry.TarryWarning):
        result = tarry.run("fedasync", **{"task": "digits", **SETTINGS, **settings})
    return result, reports(caplog)


def test_healthy_training_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    for method in ("fedasync", "fedavg", "orthofl", "fedsol"):
        result = tarry.run(method, "digits", **SETTINGS, time=200.0, lr=0.05)
        assert result.warnings == []
    assert reports(caplog) == []


def test_accuracy_that_stays_at_chance_level_is_reported_while_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[float, int]] = []
    with caplog.at_level(logging.WARNING, logger="tarry"), pytest.warns(tarry.TarryWarning, match="chance level"):
        result = tarry.run(
            "fedasync",
            "digits",
            **{**SETTINGS, "eval_every": 20.0},
            time=400.0,
            lr=1e6,
            callbacks=[lambda event: seen.append((event.time, len(reports(caplog))))],
        )
    (report,) = [r for r in reports(caplog) if "chance" in r]
    assert report.startswith("fedasync, seed 0: at ")
    assert next(time for time, count in seen if count) < 200, "the report does not wait for the end of the run"
    (warning,) = [w for w in result.warnings if "chance" in w]
    assert "learning rate" in warning or "lr" in warning


def test_rejected_updates_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    result, found = run(caplog, lr=1e30, time=200.0)
    assert result.rejected > 5
    assert sum("rejected" in r for r in found) == 1


def test_a_loss_that_is_not_finite_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(20) % 2
    task = tarry.Task(
        "broken test set",
        model=nn.Linear(4, 2),
        loss=nn.functional.cross_entropy,
        clients=[(x[::2], y[::2]), (x[1::2], y[1::2])],
        test=(x / 0, y),
    )
    result, found = run(caplog, task=task, clients=None, time=100.0)
    assert sum("not a finite number" in r for r in found) == 1
    assert any("not a finite number" in w for w in result.warnings)


def test_chance_level_is_two_standard_errors_above_the_majority_class() -> None:
    assert chance_limit(0.1, 900) == pytest.approx(0.12)
    assert chance_limit(None, 900) is None
    assert chance_limit(0.5, 0) is None
    assert chance_limit(0.999, 4) is None, "a majority that is nearly always right is no sign of failure"
