"""Comparisons over a grid of settings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.core.errors import BadInput
from tests.helpers.small_task import small_task

SETTINGS: dict[str, Any] = {"delay": "lognormal", "updates": 6, "epochs": 1}


def test_a_grid_runs_every_combination_and_has_columns_for_its_axes():
    c = tarry.compare(["fedavg", "fedasync"], small_task(), seeds=[0, 1], lr=[0.1, 0.05], batch=[2, "all"], **SETTINGS)
    assert len(c) == 2 * 2 * 2 * 2
    labels = [row.label for row in c.summary.rows]
    assert labels[:3] == ["fedavg+lr=0.1+batch=2", "fedavg+lr=0.1+batch=all", "fedavg+lr=0.05+batch=2"]
    assert c.to_markdown().startswith("| method | lr | batch | ")
    frame = c.to_frame()
    assert sorted(set(frame.lr)) == [0.05, 0.1]
    assert list(c.summary.to_frame().batch[:2]) == [2, "all"]
    alone = tarry.run("fedavg", small_task(), seed=1, lr=0.05, batch=2, **SETTINGS)
    assert c["fedavg+lr=0.05+batch=2"][1].weights_sha256 == alone.weights_sha256


def test_an_axis_that_is_also_a_number_of_results_has_another_column():
    frame = tarry.compare(["fedavg"], small_task(), seeds=[0], **{**SETTINGS, "updates": [6, 12]}).to_frame()
    assert list(frame.updates_setting) == [6, 12]


def test_a_grid_in_a_folder_is_resumed_read_and_verified(tmp_path):
    settings = {**SETTINGS, "task": {"name": "digits", "limit": 60, "hidden": 4}, "clients": 3}

    def made() -> Any:
        return tarry.compare(["fedasync"], seeds=[0], lr=[0.1, 0.05], out=tmp_path / "g", **settings)

    first = made()
    shutil.rmtree(tmp_path / "g" / "fedasync-lr=0.05" / "seed-0")
    (tmp_path / "g" / "fedasync-lr=0.1" / "seed-0" / "result.json").unlink()
    again = made()
    assert [r.weights_sha256 for r in again] == [r.weights_sha256 for r in first]
    read = tarry.read(tmp_path / "g")
    assert [row.axes for row in read.summary.rows] == [{"lr": 0.1}, {"lr": 0.05}]
    assert tarry.verify(tmp_path / "g").ok
    (tmp_path / "g" / "significance.json").write_text("{}")
    assert not tarry.verify(tmp_path / "g").ok


def test_an_unfinished_run_of_a_grid_has_its_label(tmp_path):
    tarry.compare(["fedasync"], seeds=[0], lr=[0.1, 0.05], clients=3, out=tmp_path / "g", **SETTINGS)
    run = Path(tmp_path / "g" / "fedasync-lr=0.05" / "seed-0")
    (run / "result.json").unlink()
    assert tarry.read(run).label == "fedasync+lr=0.05"


def test_one_run_has_one_value_and_the_error_names_compare():
    with pytest.raises(BadInput, match=r"lr=\[0.1, 0.05\]: wants float.*`tarry compare` runs a grid of several"):
        tarry.run("fedavg", lr=[0.1, 0.05])  # type: ignore[arg-type]


def test_the_number_of_runs_is_limited():
    with pytest.raises(BadInput, match=r"1 methods × 5,000 combinations of settings × 3 seeds: 15,000 runs"):
        tarry.compare(["fedavg"], lr=[0.001 * (i + 1) for i in range(5000)])
