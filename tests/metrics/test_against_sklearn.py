"""Metrics agree with scikit-learn on all outputs, in whatever chunks they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor

from tarry.metrics import Scoring, metrics_of


def scores(names: str, outputs: Tensor, targets: Tensor, sizes: Sequence[int] = (1, 7, 400)) -> dict[str, float]:
    """Return the metrics over chunks of these sizes, then the rest."""
    scoring, at = Scoring(metrics_of([names])), 0
    for size in (*sizes, len(outputs)):
        if at < len(outputs):
            scoring.update(outputs[at : at + size], targets[at : at + size])
        at += size
    return scoring.values()


def imbalanced(n: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits that know something of classes whose shares fall by half."""
    g = torch.Generator().manual_seed(seed)
    shares = torch.tensor([0.5**c for c in range(classes)])
    y = torch.multinomial(shares, n, replacement=True, generator=g)
    return torch.randn(n, classes, generator=g) + 1.5 * torch.nn.functional.one_hot(y, classes), y


def test_metrics_of_classes() -> None:
    out, y = imbalanced(3000, 5)
    p, answers, labels = torch.softmax(out.double(), 1).numpy(), out.argmax(1).numpy(), y.numpy()
    got = scores("accuracy,balanced_accuracy,f1,f1:average=micro,f1:average=weighted,topk:k=2,auroc,perplexity", out, y)
    assert got == pytest.approx(
        {
            "accuracy": sk.accuracy_score(labels, answers),
            "balanced_accuracy": sk.balanced_accuracy_score(labels, answers),
            "f1": sk.f1_score(labels, answers, average="macro"),
            "f1_micro": sk.f1_score(labels, answers, average="micro"),
            "f1_weighted": sk.f1_score(labels, answers, average="weighted"),
            "top2": sk.top_k_accuracy_score(labels, p, k=2),
            "auroc": sk.roc_auc_score(labels, p, multi_class="ovr", average="macro"),
            "perplexity": np.exp(sk.log_loss(labels, p)),
        },
        rel=1e-10,
    )


def test_probabilities_and_logits_have_the_same_metrics() -> None:
    out, y = imbalanced(500, 4)
    p = torch.softmax(out.double(), 1)
    names = "auroc,perplexity,ece"
    assert scores(names, p, y) == pytest.approx(scores(names, out.double(), y), rel=1e-9)
    assert scores(names, p.log(), y) == pytest.approx(scores(names, out.double(), y), rel=1e-9)


def test_a_class_without_examples_counts_as_in_scikit_learn() -> None:
    out, y = imbalanced(400, 4)
    y[y == 3] = 0  # class 3 is predicted, but never right
    got = scores("f1,balanced_accuracy", out, y)
    assert got["f1"] == pytest.approx(sk.f1_score(y, out.argmax(1), average="macro"))
    present = [sk.recall_score(y == c, out.argmax(1) == c) for c in range(3)]
    assert got["balanced_accuracy"] == pytest.approx(np.mean(present))


@pytest.mark.parametrize("probabilities", [False, True])
def test_metrics_of_labels(probabilities: bool) -> None:
    g = torch.Generator().manual_seed(1)
    y = (torch.rand(2000, 6, generator=g) < 0.2).float()
    out = torch.randn(2000, 6, generator=g) + 2 * y - 1.5
    given = out.sigmoid() if probabilities else out
    got = scores("f1,f1:average=micro,auroc,accuracy", given, y)
    answers = (out > 0).int()
    assert got == pytest.approx(
        {
            "f1": sk.f1_score(y, answers, average="macro"),
            "f1_micro": sk.f1_score(y, answers, average="micro"),
            "auroc": sk.roc_auc_score(y, out, average="macro"),
            "accuracy": 1 - sk.hamming_loss(y, answers),
        },
        rel=1e-10,
    )


def test_metrics_of_one_yes_or_no_answer() -> None:
    g = torch.Generator().manual_seed(2)
    y = (torch.rand(900, generator=g) < 0.3).float()
    out = torch.randn(900, 1, generator=g) + y[:, None]
    got, answers = scores("f1,auroc,accuracy,balanced_accuracy", out, y), out[:, 0] > 0
    assert got == pytest.approx(
        {
            "f1": sk.f1_score(y, answers),
            "auroc": sk.roc_auc_score(y, out[:, 0]),
            "accuracy": sk.accuracy_score(y, answers),
            "balanced_accuracy": sk.balanced_accuracy_score(y, answers),
        },
        rel=1e-10,
    )
    assert scores("f1,accuracy", out[:, 0], y.long()) == pytest.approx(scores("f1,accuracy", out, y))


def test_two_classes_have_the_auroc_of_yes_or_no() -> None:
    out, y = imbalanced(700, 2)
    assert scores("auroc", out, y)["auroc"] == pytest.approx(sk.roc_auc_score(y, out[:, 1] - out[:, 0]), rel=1e-12)


def test_equal_scores_count_half_in_auroc() -> None:
    g = torch.Generator().manual_seed(3)
    out, y = torch.randint(0, 4, (5000, 1), generator=g).float(), (torch.rand(5000, generator=g) < 0.4).float()
    assert scores("auroc", out, y)["auroc"] == pytest.approx(sk.roc_auc_score(y, out[:, 0]), rel=1e-13)


@pytest.mark.parametrize("shape", [(800,), (800, 1), (800, 3)])
def test_metrics_of_numbers(shape: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(4)
    y = 1e4 + 10 * torch.randn(shape, generator=g, dtype=torch.float64)  # a mean far from 0, where sums cancel
    out = y + torch.randn(shape, generator=g, dtype=torch.float64) * 3
    assert scores("mae,rmse,r2", out, y) == pytest.approx(
        {
            "mae": sk.mean_absolute_error(y, out),
            "rmse": sk.root_mean_squared_error(y, out),
            "r2": sk.r2_score(y, out),
        },
        rel=1e-9,
    )


def test_r2_of_constant_targets() -> None:
    ones = torch.ones(10)
    assert scores("r2", ones, ones) == {"r2": sk.r2_score(ones, ones)}
    assert scores("r2", ones + 1, ones) == {"r2": sk.r2_score(ones, ones + 1)}


def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    from torchmetrics.classification import MulticlassCalibrationError

    out, y = imbalanced(2500, 4, seed=5)
    expected: Any = MulticlassCalibrationError(4, n_bins=15, norm="l1")(torch.softmax(out, 1), y)
    assert scores("ece", out, y)["ece"] == pytest.approx(float(expected), abs=1e-6)


def test_tokens_that_do_not_count_are_left_out() -> None:
    out, y = imbalanced(600, 5, seed=6)
    rows, targets = out.reshape(60, 10, 5), y.reshape(60, 10).clone()
    targets[:, 7:] = -100
    counted = targets != -100
    p = torch.softmax(rows[counted].double(), -1)
    got = scores("f1,perplexity,topk:k=2,accuracy", rows, targets, sizes=(1, 8))
    labels = targets[counted]
    assert got["f1"] == pytest.approx(sk.f1_score(labels, p.argmax(1), average="macro"))
    assert got["perplexity"] == pytest.approx(np.exp(sk.log_loss(labels, p, labels=range(5))))
    assert got["top2"] == pytest.approx(sk.top_k_accuracy_score(labels, p, k=2, labels=range(5)))
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(labels, p.argmax(1)))  # seven places in each row


def test_a_million_outputs_are_exact() -> None:
    out, y = imbalanced(1_000_000, 3, seed=7)
    p = torch.softmax(out.double(), 1)
    got = scores("f1,auroc", out, y, sizes=[1000] * 1000)
    assert got["f1"] == pytest.approx(sk.f1_score(y, out.argmax(1), average="macro"), rel=1e-12)
    assert got["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"), rel=1e-12)
