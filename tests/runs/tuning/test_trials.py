from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tarry.config.spec import Spec
from tarry.core.errors import StorageError
from tarry.runs.tuning.trials import run_trial, trial_of

SETTINGS: dict[str, Any] = {"task": {"name": "digits", "limit": 80, "hidden": 4}, "clients": 3, "validation": 0.2}


def spec(**settings: Any) -> Spec:
    return Spec.of({"method": "fedavg", "seed": 9, "updates": 3, "epochs": 1, **SETTINGS, **settings})


@pytest.mark.parametrize("error", [BrokenPipeError("the parent was killed"), StorageError("the disk is full")])
def test_errors_of_processes_and_disks_are_no_failures_of_a_trial(tmp_path: Path, error: Exception) -> None:
    def interrupted(progress: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        run_trial(spec(), tmp_path / "a" / "seed-9", interrupted)
    assert not list(tmp_path.rglob("failed-*.json"))
    done = run_trial(spec(), tmp_path / "a" / "seed-9", lambda _: None)
    assert trial_of(0, {}, [done]).status == "finished"


def test_an_error_of_training_is_recorded_and_not_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "seed-9"
    wanted = spec(method="fedasync", strict=True, lr=1e30, updates=9)
    found = trial_of(0, {}, [run_trial(wanted, folder, lambda _: None)])
    assert (found.status, found.score) == ("failed", None)
    (folder / "spec.toml").unlink()
    assert trial_of(0, {}, [run_trial(wanted, folder, lambda _: None)]) == found
    assert not (folder / "spec.toml").exists()


def test_a_score_that_is_not_finite_is_a_trial_that_diverged(tmp_path: Path) -> None:
    """Also when it was written: there it is null."""
    run = run_trial(spec(), None, lambda _: None)
    for loss in (float("nan"), float("inf"), None):
        values = {**run.__dict__, "validation_metrics": {"accuracy": 0.1, "loss": loss}}
        assert trial_of(0, {}, [type(run)(**values)]).status == "diverged"
