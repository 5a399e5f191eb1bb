"""Metrics by name, as functions, from files and of torchmetrics; and what is said about those that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tarry
from tarry.core.metric import LOSS
from tarry.metrics import Scoring, chosen_metrics, default_metrics, is_mean_over_examples, metrics_of


def names(*chosen: Any) -> list[str]:
    return [m.name for m in metrics_of(chosen)]


def classes(n: int = 40) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=g), torch.randint(0, 3, (n,), generator=g)


def score(metric: Any, outputs: Tensor, targets: Tensor) -> float:
    scoring = Scoring(metrics_of([metric]))
    scoring.update(outputs[:7], targets[:7])
    scoring.update(outputs[7:], targets[7:])
    (value,) = scoring.values().values()
    return value


def test_a_parameter_belongs_to_the_name_before_it() -> None:
    text = "f1:average=micro, topk:k=3,auroc,torchmetrics:F1Score:task=multiclass,num_classes=3"
    assert chosen_metrics(text) == (
        "f1:average=micro",
        "topk:k=3",
        "auroc",
        "torchmetrics:F1Score:task=multiclass,num_classes=3",
    )
    assert names(text) == ["f1_micro", "top3", "auroc", "F1Score"]
    assert names("f1", tarry.Metric("mine", streaming=list)) == ["f1", "mine"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("acuracy", "--metric acuracy: there is no such metric. Did you mean 'accuracy'?"),
        ("f1,auroc,f1", "--metric f1: two metrics have this name; leave one out, or give it another (name=...)"),
        ("topk:n=3", "--metric.n 3: metric 'topk' has no parameter 'n'."),
        ("topk:k=0", "--metric topk:k=0: must be 1 or more"),
        ("f1:average=best", "--metric.average best: wants macro | micro | weighted, got 'best'"),
        (
            "torchmetrics:F1Scor",
            "--metric torchmetrics:F1Scor: torchmetrics has no metric of this name. Did you mean 'F1Score'?",
        ),
        ("torchmetrics:F1Score:task=many", "torchmetrics does not accept this"),
        ("torchmetrics:MeanMetric", "torchmetrics does not say whether higher is better"),
        ("nothere.py:f1", "--metric nothere.py:f1: there is no file"),
        (3, "a metric is a name, a Metric, a function (outputs, targets) or of torchmetrics, got int"),
        ([], "wants at least one metric"),
    ],
)
def test_metrics_that_are_not_there_are_named(chosen: Any, said: str) -> None:
    with pytest.raises(tarry.BadInput) as e:
        metrics_of(chosen if isinstance(chosen, list) else [chosen])
    assert said in str(e.value)


def test_a_function_gets_all_outputs_at_once() -> None:
    seen = []

    def largest(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append((len(outputs), len(targets)))
        return outputs.max()

    out, y = classes()
    assert score(largest, out, y) == pytest.approx(out.max().item())
    assert (names(largest), seen) == (["largest"], [(40, 40)])
    assert names(lambda outputs, targets: 0.0) == ["function"]


def test_a_file_holds_functions_metrics_and_factories(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import tarry\n"
        "def error(outputs, targets):\n    return (outputs.argmax(1) != targets).float().mean()\n"
        "record = tarry.Metric('recorded', error, higher_is_better=False)\n"
        "def factory(*, scale: float = 1.0):\n"
        "    '''A scaled error.'''\n"
        "    return tarry.Metric('scaled', lambda o, t: scale * error(o, t), higher_is_better=False)\n"
    )
    out, y = classes()
    wrong = (out.argmax(1) != y).double().mean().item()
    file = f"{tmp_path}/own.py"
    assert score(f"{file}:error", out, y) == pytest.approx(wrong)
    (named,) = metrics_of([f"{file}:error:name=mistakes,higher_is_better=no,unit=%"])
    assert (named.name, named.higher_is_better, named.unit, named.best) == ("mistakes", False, "%", 0.0)
    assert score(f"{file}:record", out, y) == pytest.approx(wrong)
    assert score(f"{file}:factory:scale=10", out, y) == pytest.approx(10 * wrong)


def test_a_metric_of_torchmetrics_by_name_and_as_an_object() -> None:
    from torchmetrics.classification import MulticlassF1Score

    out, y = classes()
    own = MulticlassF1Score(3, average="macro")
    expected = float(own(out, y))
    text = "torchmetrics:F1Score:task=multiclass,num_classes=3,average=macro,name=again"
    assert score("f1", out, y) == pytest.approx(expected)
    assert score(text, out, y) == pytest.approx(expected)
    assert score(own, out, y) == pytest.approx(expected)
    assert names(own, text) == ["MulticlassF1Score", "again"]
    assert float(own.compute()) == pytest.approx(expected)  # the object itself has not changed
    (error,) = metrics_of(["torchmetrics:MeanSquaredError:squared=false"])
    assert (error.name, error.higher_is_better) == ("MeanSquaredError", False)
    numbers = torch.arange(20.0)[:, None]
    assert score(error, numbers + 2, numbers[:, 0]) == pytest.approx(2.0)


def test_torchmetrics_gets_a_row_for_each_token_that_counts() -> None:
    out, y = classes(48)
    rows, targets = out.reshape(12, 4, 3), y.reshape(12, 4).clone()
    targets[:, 3] = -100
    counted = targets != -100
    f1 = "torchmetrics:F1Score:task=multiclass,num_classes=3,average=macro"
    assert score(f1, rows, targets) == pytest.approx(score("f1", rows[counted], targets[counted]))
    perplexity = "torchmetrics:Perplexity:ignore_index=-100"
    assert score(perplexity, rows, targets) == pytest.approx(score("perplexity", rows, targets), rel=1e-5)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(3), "--metric mine: it returned a tensor of shape (3,); it should return one number"),
        ("high", "--metric mine: it returned str; it should return one number"),
        (None, "--metric mine: it returned NoneType; it should return one number"),
        (28, '--metric mine: it returned 28, and a share (unit "%") is between 0 and 1; divide a count by'),
    ],
)
def test_values_that_make_no_sense_are_rejected(value: Any, said: str) -> None:
    with pytest.raises(tarry.BadInput) as e:
        score(tarry.Metric("mine", lambda *_: value, unit="%"), *classes())
    assert said in str(e.value)


@pytest.mark.parametrize(
    ("metric", "outputs", "targets", "said"),
    [
        (
            "rmse",
            torch.zeros(9, 3),
            torch.zeros(9, dtype=torch.int64),
            "--metric rmse: it is for numbers, with a target for",
        ),
        (
            "f1",
            torch.zeros(9, 3),
            torch.zeros(9, 2),
            "--metric f1: it is for scores of labels, with a target 0 or 1 for each",
        ),
        ("topk", torch.zeros(9, 3), torch.zeros(9, 3), "--metric top5: it is for scores of classes"),
        (
            "topk:k=4",
            torch.zeros(9, 3),
            torch.zeros(9, dtype=torch.int64),
            "--metric topk:k=4: the model scores 3 classes",
        ),
        (
            "f1",
            torch.zeros(9, 1),
            torch.full((9,), 0.5),
            "--metric f1: it is for classes, or for targets that are 0 or 1",
        ),
        (
            "f1",
            torch.zeros(9, 3),
            torch.full((9,), 7),
            "--metric f1: the targets are 7 to 7, and the model scores 3 classes",
        ),
        (
            "torchmetrics:R2Score",
            torch.zeros(9, 3),
            torch.zeros(9),
            "--metric R2Score: torchmetrics rejects these outputs",
        ),
        ("balanced_accuracy", torch.zeros(9, 3), torch.zeros(9, 3), "it is for classes, not for several labels"),
    ],
)
def test_metrics_that_do_not_fit_the_outputs_are_rejected(
    metric: str, outputs: Tensor, targets: Tensor, said: str
) -> None:
    with pytest.raises(tarry.BadInput) as e:
        score(metric, outputs, targets)
    assert said in str(e.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("time", "results have another column of this name"),
        ("my score", "a name of a metric begins with a letter"),
        ("x" * 41, "has at most 40 letters"),
    ],
)
def test_names_of_metrics_are_names_of_columns(name: str, said: str) -> None:
    with pytest.raises(tarry.BadInput, match=said):
        tarry.Metric(name)


def test_a_metric_without_a_function_cannot_be_measured() -> None:
    with pytest.raises(tarry.BadInput, match="--metric own: it has neither a function nor an accumulator"):
        score(tarry.Metric("own"), *classes())
    with pytest.raises(tarry.BadInput, match="it has a function and an accumulator; give one"):
        tarry.Metric("own", max, streaming=list)  # type: ignore[arg-type]


def test_outputs_that_are_no_tensor_have_a_loss_alone() -> None:
    scoring = Scoring(metrics_of(["f1"]))
    with pytest.raises(tarry.BadInput, match=r"--metric f1: the model returns tuple, .* use --metric loss"):
        scoring.update((torch.zeros(2), 1), torch.zeros(2))
    assert default_metrics((torch.zeros(2), 1), torch.zeros(2)) == (LOSS,)


def test_the_metric_of_a_task_follows_from_its_outputs_and_targets() -> None:
    def default(outputs: Tensor, targets: Tensor) -> str:
        return default_metrics(outputs, targets)[0].name

    assert default(torch.zeros(2, 3), torch.tensor([0, 2, 1, 1])) == "accuracy"
    assert default(torch.zeros(2, 5, 7), torch.zeros(9, 5, dtype=torch.int64)) == "accuracy"
    assert default(torch.zeros(2, 1), torch.tensor([0.0, 1.0, 1.0])) == "accuracy"
    assert default(torch.zeros(2, 3), torch.ones(9, 3)) == "f1"
    assert default(torch.zeros(2, 1), torch.tensor([0.0, 1.0, 0.5])) == "rmse"
    assert default(torch.zeros(2, 3), torch.randn(9, 3)) == "rmse"
    assert default(torch.zeros(2, 3), torch.randn(9, 2)) == "loss"
    assert default(torch.zeros(2), torch.tensor([3, 4, 5])) == "loss"


def test_means_over_examples_have_values_by_class() -> None:
    found = {name: is_mean_over_examples(metrics_of([name])[0]) for name in ("accuracy", "topk", "f1", "auroc", "loss")}
    assert found == {"accuracy": True, "topk": True, "f1": False, "auroc": False, "loss": False}


def test_nan_is_never_right() -> None:
    out, y = classes()
    out[3] = torch.nan
    assert score("accuracy", out, y) < 1
    for name in ("f1", "balanced_accuracy", "topk:k=3"):
        assert 0 <= score(name, out, y) < 1
    assert score("topk:k=3", out, y) == pytest.approx(39 / 40)
    assert score("auroc", out, y) != score("auroc", out, y)  # NaN
