"""Runs that are scored by metrics of all kinds: values, targets and their directions, files, tables, pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

import tarry
from tarry.runs.client_statistics import statistics

SHORT: dict[str, Any] = {"updates": 12, "steps": 3, "batch": 8, "lr": 0.2, "delay": [1.0, 2.0, 3.0]}


def imbalanced(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=g) ** 3 * 4).long()
    return torch.randn(n, 6, generator=g) + nn.functional.one_hot(y, 6), y


def classes(**others: Any) -> tarry.Task:
    clients = [imbalanced(20 + k, k) for k in range(3)]
    task = {"loss": cross_entropy, "clients": clients, "test": imbalanced(2500, 9), "chunk": 300}
    return tarry.Task("imbalanced", model=nn.Linear(6, 4), **{**task, **others})


def line(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g)
    return x, (x @ torch.tensor([1.0, -2.0, 0.5]) + 3)[:, None]


def numbers(**others: Any) -> tarry.Task:
    clients = [line(20, k) for k in range(3)]
    return tarry.Task("line", model=nn.Linear(3, 1), loss=mse_loss, clients=clients, test=line(50, 9), **others)


def macro_f1(outputs: Tensor, targets: Tensor) -> float:
    return float(sk.f1_score(targets, outputs.argmax(1), average="macro"))


def outputs_of(result: tarry.Result, x: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = result.model().eval()(x)
    return out


def test_a_function_and_the_metric_of_its_name_are_that_of_scikit_learn_under_their_own_names() -> None:
    task = classes()
    result = tarry.run("fedasync", task, metric=[macro_f1, "f1", "auroc", "accuracy"], **SHORT)
    assert task.test is not None
    x, y = task.test
    out = outputs_of(result, x)
    expected = {
        "macro_f1": macro_f1(out, y),
        "f1": macro_f1(out, y),
        "auroc": sk.roc_auc_score(y, torch.softmax(out.double(), 1), multi_class="ovr"),
        "accuracy": (out.argmax(1) == y).double().mean().item(),
        "loss": cross_entropy(out, y).item(),
    }
    assert result.final_metrics == pytest.approx(expected, rel=1e-6)
    assert (result.metric.name, result.final_score) == ("macro_f1", result.curve[-1].score)
    assert result.final_accuracy == pytest.approx(expected["accuracy"])
    assert repr(result).startswith(f"Result(fedasync on imbalanced, seed 0: macro_f1 {expected['macro_f1']:.4g} after")
    assert list(result.to_frame()) == ["time", "updates", "macro_f1", "f1", "auroc", "accuracy", "loss"]


def test_metrics_change_no_weights_and_no_other_number() -> None:
    task = classes()
    plain = tarry.run("fedbuff", task, **SHORT)
    more = tarry.run("fedbuff", task, metric="accuracy,f1,auroc", client_metrics=True, **SHORT)
    assert more.weights_sha256 == plain.weights_sha256
    assert [(p.time, p.accuracy, p.loss) for p in more.curve] == [(p.time, p.accuracy, p.loss) for p in plain.curve]
    assert (plain.metrics, plain.metric.name) == ((), "accuracy")


def test_regression_is_scored_by_rmse_whose_target_is_reached_from_above() -> None:
    task = numbers()
    result = tarry.run("fedasync", task, metric="rmse,r2,mae", target=1.0, **{**SHORT, "updates": 500})
    assert result.metric.name == tarry.run("fedasync", task, **SHORT).metric.name == "rmse"
    assert task.test is not None
    out, y = outputs_of(result, task.test[0]), task.test[1]
    expected = {"rmse": sk.root_mean_squared_error(y, out), "r2": sk.r2_score(y, out)}
    assert {k: result.final_metrics[k] for k in expected} == pytest.approx(expected, rel=1e-5)
    scores = [p.score for p in result.curve if p.score is not None]
    assert result.updates < 500
    assert scores[-1] <= 1.0 < min(scores[:-1])
    missed = tarry.run("fedasync", task, target=1e-9, **SHORT)
    assert missed.final_score is not None
    best = min(p.score for p in missed.curve if p.score is not None)
    assert missed.warnings == [f"--target 1e-09 was not reached: the best rmse was {best:.4g}"]


def test_several_labels_are_scored_by_f1_and_one_by_accuracy() -> None:
    def labels(n: int, seed: int, width: int) -> tuple[Tensor, Tensor]:
        x, _ = imbalanced(n, seed)
        return x, (x[:, :width] > 0.7).float()

    for width, name in ((3, "f1"), (1, "accuracy")):
        task = tarry.Task(
            "labels",
            model=nn.Linear(6, width),
            loss=binary_cross_entropy_with_logits,
            clients=[labels(30, k, width) for k in range(3)],
            test=labels(200, 9, width),
        )
        result = tarry.run("fedasync", task, **SHORT)
        assert task.test is not None
        answers, y = outputs_of(result, task.test[0]) > 0, task.test[1]
        expected = sk.f1_score(y, answers, average="macro") if width > 1 else sk.accuracy_score(y, answers)
        assert (result.metric.name, result.final_score) == (name, pytest.approx(expected))


def test_tokens_are_scored_by_accuracy_and_perplexity() -> None:
    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.table(x)
            return out

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 5, (n, 4), generator=torch.Generator().manual_seed(seed))
        y = (x + 1) % 5
        return x, y.masked_fill(torch.arange(4) == 0, -100)

    task = tarry.Task("next", model=Next, loss=loss, clients=[rows(10, k) for k in range(3)], test=rows(40, 9), chunk=7)
    result = tarry.run("fedasync", task, metric="accuracy,perplexity", **SHORT)
    assert task.test is not None
    out, y = outputs_of(result, task.test[0]), task.test[1]
    counted = y != -100
    assert result.final_metrics["accuracy"] == pytest.approx((out.argmax(-1) == y)[counted].double().mean().item())
    assert result.final_metrics["perplexity"] == pytest.approx(
        cross_entropy(out[counted], y[counted]).exp().item(), rel=1e-5
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metric": "f2"}, "metric='f2': there is no such metric"),
        ({"metric": "rmse"}, "metric='rmse': it is for numbers, with a target for each output"),
        ({"metric": "auroc", "target": 90}, "target=90: auroc is at most 1"),
        ({"target": 90}, "target=90: accuracy is at most 1; 0.9 stands for 90 %"),
        ({"metric": "loss", "target": -1}, None),
        ({"metric": lambda outputs, targets: float("nan")}, "it is not a number (NaN) for the first weights"),
    ],
)
def test_metrics_that_cannot_be_are_rejected_before_anything_is_written(
    tmp_path: Path, settings: dict[str, Any], said: str | None
) -> None:
    if said is None:
        assert tarry.run("fedasync", classes(), out=tmp_path / "run", **settings, **SHORT).target == -1
        return
    with pytest.raises(tarry.BadInput) as e:
        tarry.run("fedasync", classes(), out=tmp_path / "run", **settings, **SHORT)
    assert said in str(e.value)
    assert not (tmp_path / "run").exists()


def test_auroc_needs_two_classes_in_the_test_set() -> None:
    x, y = imbalanced(30, 9)
    with pytest.raises(tarry.BadInput, match=r"auroc.*not a number.*needs examples of two classes"):
        tarry.run("fedasync", classes(test=(x, torch.zeros_like(y))), metric="auroc", **SHORT)


def test_a_metric_that_stops_being_a_number_is_recorded_as_missing(tmp_path: Path) -> None:
    calls = []

    def sometimes(outputs: Tensor, targets: Tensor) -> float:
        calls.append(1)
        return float("nan") if len(calls) > 3 else 1.0

    result = tarry.run("fedasync", classes(), metric=sometimes, out=tmp_path / "run", **SHORT)
    count = sum(p.score != 1.0 for p in result.curve)
    assert f"sometimes was not a number (NaN) at {count} evaluations of {len(result.curve)}" in result.warnings
    assert tarry.Result.read(tmp_path / "run").final_score is None


def test_metrics_are_in_events_files_and_after_resuming(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = tarry.run("fedasync", "digits", clients=3, updates=9, metric="f1,topk:k=2,accuracy", out=out)
    (last,) = [row for row in result.events() if row["kind"] == "evaluate"][-1:]
    assert {**last["metrics"], "accuracy": last["accuracy"], "loss": last["loss"]} == result.final_metrics
    assert list(last["metrics"]) == ["f1", "top2"]
    again = tarry.read(out)
    assert isinstance(again, tarry.Result)
    assert (again, again.metric, again.curve[-1].score) == (result, result.metric, result.final_score)
    raw = json.loads((out / "result.json").read_text())
    assert raw["metrics"][0] == {"name": "f1", "higher_is_better": True, "unit": "", "best": 1.0}
    assert 'metric = ["f1", "topk:k=2", "accuracy"]' in (out / "spec.toml").read_text()
    (out / "result.json").unlink()
    unfinished = tarry.read(out)
    assert isinstance(unfinished, tarry.Result)
    assert (unfinished.metric, list(unfinished.curve)) == (result.metric, list(result.curve))
    resumed = tarry.resume(out)
    assert (resumed.weights_sha256, list(resumed.curve)) == (result.weights_sha256, list(result.curve))


def test_a_metric_from_a_file_is_digested_and_one_that_is_an_object_is_needed_again(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def mine(outputs, targets):\n    return outputs.argmax(1).eq(targets).float().mean()\n")
    by_file = tarry.run("fedasync", "digits", clients=3, updates=6, metric=f"{file}:mine", out=tmp_path / "file")
    assert by_file.final_score == pytest.approx(by_file.final_metrics["mine"])
    (tmp_path / "file" / "result.json").unlink()
    file.write_text(file.read_text() + "\n")
    with pytest.raises(tarry.BadInput, match="is not what it was when this run began"):
        tarry.resume(tmp_path / "file")
    tarry.run("fedasync", "digits", clients=3, updates=6, metric=macro_f1, out=tmp_path / "object")
    (tmp_path / "object" / "result.json").unlink()
    with pytest.raises(tarry.BadInput, match="given a Python object as metric"):
        tarry.resume(tmp_path / "object")
    assert tarry.resume(tmp_path / "object", metric=macro_f1).metric.name == "macro_f1"


def test_a_task_names_its_metrics_and_the_setting_takes_precedence() -> None:
    task = numbers(metrics=["mae", "r2"])
    assert [m.name for m in tarry.run("fedasync", task, **SHORT).metrics] == ["mae", "r2"]
    assert [m.name for m in tarry.run("fedasync", task, metric="rmse", **SHORT).metrics] == ["rmse"]
    loss = tarry.run("fedasync", numbers(metrics=["loss"]), **SHORT)
    assert (loss.metrics, loss.metric.name, loss.final_score) == ((), "loss", loss.final_loss)


def test_a_comparison_has_columns_and_pictures_of_all_metrics(tmp_path: Path) -> None:
    c = tarry.compare(["fedavg", "fedasync"], numbers(), seeds=[0, 1], metric="rmse,r2", out=tmp_path / "c", **SHORT)
    table = str(c)
    assert table.splitlines()[0].split() == [
        "method",
        "rmse",
        "time",
        "to",
        "target",
        "r2",
        "staleness",
        "mean",
        "/",
        "max",
        "updates",
    ]
    assert "105.3 % of the highest final rmse" in table
    assert "until the first evaluation at or below it" in table
    means = {row.label: row.score for row in c.summary.rows}
    assert c.best == min(means, key=lambda label: means[label] or np.inf)
    page = c.report(tmp_path / "page.html").read_text()
    assert all(f"{name} over virtual time" in page for name in ("rmse", "r2"))
    assert "Further left and lower is better" in page
    stored = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert [m["name"] for m in stored["metrics"]] == ["rmse", "r2"]
    assert {"rmse", "rmse_sd", "r2", "loss"} <= stored["rows"][0].keys()
    assert "accuracy" not in stored["rows"][0]
    axes = c.plot(y="r2")
    assert axes.get_ylabel() == "test r2"
    with pytest.raises(tarry.BadInput, match="y='f1': must be score, rmse or r2 or loss"):
        c.plot(y="f1")


def test_runs_with_other_scores_are_not_compared() -> None:
    runs = [tarry.run("fedasync", classes(), metric=m, seed=i, **SHORT) for i, m in enumerate(("f1", "auroc"))]
    from tarry.report import summarize

    with pytest.raises(tarry.BadInput, match="the runs have different scores: auroc, f1; give those of one --metric"):
        summarize(runs)


def test_statistics_over_clients_are_those_of_personalization_without_fine_tuning() -> None:
    result = tarry.run("fedasync", "digits", updates=20, client_metrics=True, personalize=0)
    assert result.personalization is not None
    scores = np.array(result.personalization["before"]["per_client"])
    final = result.final_metrics
    assert final["client_mean"] == pytest.approx(scores.mean())
    assert final["client_sd"] == pytest.approx(scores.std())
    assert final["client_worst_decile"] == pytest.approx(scores.min())  # of ten clients one
    assert final["client_jain"] == pytest.approx(scores.sum() ** 2 / (10 * (scores**2).sum()))
    assert [m.name for m in result.metrics][1:] == ["client_mean", "client_worst_decile", "client_sd", "client_jain"]
    assert all(p.metrics["client_jain"] is not None for p in result.curve)


def test_the_worst_decile_is_of_the_clients_with_the_worst_scores() -> None:
    scores = np.arange(1.0, 26.0)
    found = statistics(scores)
    assert found["client_worst_decile"] == 2.0  # of 1, 2 and 3
    assert statistics(scores, higher_is_better=False)["client_worst_decile"] == 24.0
    assert statistics(np.full(4, 0.5))["client_jain"] == 1.0
    assert statistics(np.zeros(4))["client_jain"] == 1.0


def test_clients_without_classes_have_no_statistics() -> None:
    with pytest.raises(tarry.BadInput, match="client_metrics: task 'line' has no classes by which clients could be"):
        tarry.run("fedasync", numbers(), client_metrics=True, **SHORT)


def test_f1_is_the_score_of_a_run_whose_clients_are_scored_by_accuracy() -> None:
    result = tarry.run("fedavg", "digits", updates=10, metric="f1", personalize=0)
    plain = tarry.run("fedavg", "digits", updates=10, personalize=0)
    assert result.personalization == plain.personalization
    top = tarry.run("fedavg", "digits", updates=10, metric="topk:k=3", personalize=0)
    assert top.personalization is not None
    assert plain.personalization is not None
    assert top.personalization["metric"] == "top3"
    assert top.personalization["before"]["mean"] > plain.personalization["before"]["mean"]


@pytest.mark.parametrize("executor", ["pool", "batched"])
def test_other_executors_have_the_same_metrics(executor: Any) -> None:
    settings = {**SHORT, "metric": "f1,auroc", "client_metrics": True}
    task = classes()
    alone = tarry.run("fedasync", task, **settings)
    other = tarry.run("fedasync", task, executor=executor, workers=2 if executor == "pool" else 1, **settings)
    assert [p.metrics for p in other.curve] == [pytest.approx(p.metrics, rel=1e-5) for p in alone.curve]
