"""Runs with a validation set and early stopping: what they are scored on, where they stop, what they return."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tarry
from tarry.core.errors import BadInput
from tarry.core.events import Event
from tarry.deploy.config import read_config
from tarry.record.result import Result
from tarry.training.flat_model import FlatModel
from tests.helpers.interrupted import interrupted_run

SETTINGS: dict[str, Any] = {
    "validation": 0.1, "patience": 3, "lr": 0.3, "clients": 5, "time": 40000, "eval_every": 200, "epochs": 2,
}  # fmt: skip


def run(**more: Any) -> Result:
    return tarry.run("fedasync", "digits", **{**SETTINGS, **more})


def test_a_run_stops_when_the_validation_score_no_longer_improves_and_returns_the_best_weights():
    weights: dict[float, torch.Tensor] = {}

    def remember(event: Event) -> None:
        if event.kind == "evaluate":
            weights[event.time] = event.weights.clone()

    result = run(callbacks=[remember])
    best = max(result.curve, key=lambda point: point.score)  # the first of equal ones
    assert [point.score <= best.score for point in result.curve[-3:]] == [True] * 3
    assert result.curve[-4] == best
    assert result.early_stopping == {
        "patience": 3, "stop_reason": "patience", "best_time": best.time, "best_updates": best.updates,
    }  # fmt: skip
    assert torch.equal(result.weights, weights[best.time])
    assert result.validation_metrics == best.metrics
    x, y = tarry.tasks["digits"]().test
    right = (result.model().eval()(x).argmax(1) == y).float().mean().item()
    assert result.final_accuracy == pytest.approx(right)
    assert result.final_metrics == result.test_metrics != result.validation_metrics


def test_a_run_that_ends_before_returns_the_best_weights_too():
    result = run(patience=1000, time=2000)
    assert result.early_stopping["stop_reason"] == "time"
    assert result.validation_metrics["accuracy"] == max(point.score for point in result.curve)


def test_the_score_is_the_first_metric_in_its_direction():
    result = run(metric="loss", time=60000)
    assert result.validation_metrics["loss"] == min(point.loss for point in result.curve)


def test_the_test_set_is_scored_once_at_the_end(monkeypatch):
    seen: list[int] = []
    evaluate = FlatModel.evaluate

    def count(self: FlatModel, weights: Any, examples: Any, **more: Any) -> Any:
        seen.append(len(examples[0]))
        return evaluate(self, weights, examples, **more)

    monkeypatch.setattr(FlatModel, "evaluate", count)
    result = run(time=2000, target=0.05)
    assert seen.count(360) == 1
    assert seen[-1] == 360
    assert set(seen[:-1]) == {144}
    assert result.early_stopping["stop_reason"] == "target"  # of the validation score


@pytest.mark.parametrize("how", [{"workers": 2}, {"executor": "batched"}], ids=["pool", "batched"])
def test_other_executors_stop_at_the_same_evaluation(how):
    one, other = run(), run(**how)
    if "workers" in how:
        assert one == replace(other, wall_s=one.wall_s)
    assert one.early_stopping == other.early_stopping


@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_killed_run_is_resumed_to_the_same_end(tmp_path: Path, at: int):
    whole, count = run(out=tmp_path / "whole"), 0

    def evaluations(event: Event) -> bool:
        nonlocal count
        count += event.kind == "evaluate"
        return count > at

    interrupted_run(tmp_path / "killed", evaluations, "fedasync", "digits", checkpoint_every=0.0001, **SETTINGS)
    again = tarry.resume(tmp_path / "killed")
    assert again.weights_sha256 == whole.weights_sha256
    assert (again.early_stopping, again.test_metrics) == (whole.early_stopping, whole.test_metrics)
    assert Result.read(tmp_path / "killed") == again
    assert (tmp_path / "killed" / "events.jsonl").read_bytes() == (tmp_path / "whole" / "events.jsonl").read_bytes()


def test_each_run_of_a_comparison_stops_for_itself(tmp_path: Path):
    comparison = tarry.compare(["fedasync", "fedbuff"], "digits", seeds=range(2), out=tmp_path, **SETTINGS)
    runs = [result for label in ("fedasync", "fedbuff") for result in comparison[label]]
    assert {result.early_stopping["stop_reason"] for result in runs} <= {"patience", "time"}
    assert len({result.virtual_time for result in runs}) > 1
    assert all(result.scored_on == "validation" for result in runs)
    assert "Targets and times are on the validation set, and final scores on the test set." in " ".join(
        str(comparison).split()
    )


def test_a_result_without_a_validation_set_has_no_field_of_it(tmp_path: Path):
    plain = tarry.run("fedasync", "digits", updates=3, clients=3, out=tmp_path)
    stored = json.loads((tmp_path / "result.json").read_text())
    assert not {"validation_metrics", "test_metrics", "early_stopping"} & stored.keys()
    assert "validation" not in (tmp_path / "spec.toml").read_text()
    assert plain.scored_on == "test"


def test_a_plot_names_the_set():
    from matplotlib.figure import Figure

    assert run(time=1000).plot(ax=Figure().add_subplot()).get_ylabel() == "validation accuracy"


def test_the_table_of_a_notebook_names_both_scores():
    text = run()._repr_html_()
    assert "accuracy on the validation set" in text
    assert "<th>stopped by</th><td>patience</td>" in text


def test_early_stopping_needs_a_validation_set():
    with pytest.raises(BadInput, match=r"patience=3: .* there is none; add validation=0.1"):
        tarry.run("fedasync", "digits", patience=3, updates=5)


def test_federations_reject_what_they_cannot_do():
    with pytest.raises(BadInput, match="patience = 3: a federation has no early stopping; use target, time, updates"):
        read_config({"task": "digits", "patience": 3, "validation": 0.1})
    with pytest.raises(BadInput, match=r"validation = 0.1: clients have examples of their own.*tarry.Task\(..., valid"):
        read_config({"task": "digits", "validation": 0.1, "data": "own"})
    assert read_config({"task": "digits", "validation": 0.1}).spec.validation == 0.1
