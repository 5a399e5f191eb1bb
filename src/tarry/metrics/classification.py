"""Metrics of classes and of labels that are 0 or 1. What is kept of a test set does not grow with it.

For labels (multi-label, or one yes-or-no answer) a score above a threshold is a 1: above 0.5 if all outputs lie between
0 and 1, as probabilities do, else above 0, as for logits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import exp, inf, isnan, nan
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.metric import ACCURACY, SHARE, Metric
from .forms import IGNORED, is_classes, labeled_rows, log_probabilities, yes_no_rows
from .registry import metrics

__all__ = ["Accuracy", "accuracy", "f1"]

_BLOCK = 1 << 22  # numbers that are converted at once
_MOST_BINS = 100_000
_LARGEST_EXPONENT = 700.0  # whose exponential is a number


class Decisions:
    """Counts of right and wrong decisions on labels, at both thresholds."""

    def __init__(self, name: str):
        self._name, self._probabilities = name, True
        self._counts: dict[float, Tensor] = {}  # threshold → [true positives, positive decisions] by label
        self._positives: Tensor | int = 0
        self._n = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        rows, answers = yes_no_rows(self._name, outputs, targets)
        self._probabilities &= bool(((rows >= 0) & (rows <= 1)).all())
        for threshold in (0.0, 0.5):
            decided = rows > threshold
            found = torch.stack([(decided & (answers == 1)).sum(0), decided.sum(0)])
            self._counts[threshold] = self._counts.get(threshold, 0) + found.cpu()
        self._positives = self._positives + answers.sum(0).cpu()
        self._n += len(rows)

    @property
    def counts(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """True positives, positive decisions and positives by label, and the number of examples."""
        hits, decided = self._counts[0.5 if self._probabilities else 0.0]
        assert isinstance(self._positives, Tensor)
        return hits, decided, self._positives, self._n


class Accuracy:
    """The share of right answers. Of sequences it is the mean over examples of the share of places that are right."""

    def __init__(self) -> None:
        self._right, self._n = 0.0, 0
        self._decisions: Decisions | None = None

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        if not is_classes(outputs, targets):
            self._decisions = self._decisions or Decisions("accuracy")
            self._decisions.update(outputs, targets)
            return
        self._right += float(self.per_example(outputs, targets).sum())
        self._n += len(targets)

    def value(self) -> float:
        if self._decisions is None:
            return self._right / self._n
        hits, decided, positives, n = self._decisions.counts
        return 1 - float((decided + positives - 2 * hits).sum()) / (n * len(hits))

    @staticmethod
    def per_example(outputs: Tensor, targets: Tensor) -> Tensor:
        """Return for each example whether it is right, or the share of its places. NaN is wrong."""
        if targets.ndim == 1:
            return (outputs.argmax(-1) == targets) & ~outputs.isnan().any(-1)
        counted = targets != IGNORED
        scores, right = outputs[counted], torch.zeros_like(targets)
        right[counted] = ((scores.argmax(-1) == targets[counted]) & ~scores.isnan().any(-1)).long()
        return right.flatten(1).sum(1) / counted.flatten(1).sum(1).clamp_min(1)


class Confusion:
    """Right decisions, decisions and examples of each class, or of each label."""

    def __init__(self, name: str):
        self._name = name
        self._by_class: Tensor | None = None
        self._decisions: Decisions | None = None

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        if not is_classes(outputs, targets):
            self._decisions = self._decisions or Decisions(self._name)
            self._decisions.update(outputs, targets)
            return
        rows, classes = labeled_rows(self._name, outputs, targets)
        answers, n = rows.argmax(-1), outputs.shape[-1]
        known = ~rows.isnan().any(-1)
        found = [classes[known & (answers == classes)], answers[known], classes]
        counts = torch.stack([torch.bincount(c, minlength=n) for c in found]).cpu()
        self._by_class = counts if self._by_class is None else self._by_class + counts

    @property
    def counts(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._by_class is not None:
            hits, decided, examples = self._by_class.double()
            there = decided + examples > 0  # as scikit-learn: classes that occur
            return hits[there], decided[there], examples[there]
        assert self._decisions is not None
        return tuple(counts.double() for counts in self._decisions.counts[:3])  # type: ignore[return-value]


class F1(Confusion):
    def __init__(self, name: str, average: str):
        super().__init__(name)
        self._average = average

    def value(self) -> float:
        hits, decided, examples = self.counts
        if self._average == "micro":
            return float(2 * hits.sum() / (decided + examples).sum().clamp_min(1))
        each = 2 * hits / (decided + examples).clamp_min(1)
        if self._average == "weighted":
            return float((each * examples).sum() / examples.sum().clamp_min(1))
        return float(each.mean())


class BalancedAccuracy(Confusion):
    """The mean over classes of the share of their examples that are right."""

    def value(self) -> float:
        hits, decided, examples = self.counts
        if self._decisions is not None:
            if len(hits) > 1:
                raise BadInput(f"--metric {self._name}: it is for classes, not for several labels; use f1 or auroc")
            n = self._decisions.counts[3]
            hits = torch.cat([hits, n - decided - examples + hits])
            examples = torch.cat([examples, n - examples])
        there = examples > 0
        return float((hits[there] / examples[there]).mean())


class TopK:
    """The share of examples whose class is among the k highest scores."""

    def __init__(self, name: str, k: int):
        self._name, self._k, self._right, self._n = name, k, 0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        right = self.per_example(outputs, targets)
        self._right += int(right.sum())
        self._n += len(right)

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return for each place that counts whether its class is among the highest scores."""
        rows, classes = labeled_rows(self._name, outputs, targets)
        if self._k > rows.shape[1]:
            raise BadInput(f"--metric topk:k={self._k}: the model scores {rows.shape[1]} classes; use a smaller k")
        return (rows.topk(self._k, -1).indices == classes[:, None]).any(-1) & ~rows.isnan().any(-1)

    def value(self) -> float:
        return self._right / self._n if self._n else nan


class CalibrationError:
    """The mean difference between confidence and accuracy over bins of confidence, weighted by their examples."""

    def __init__(self, name: str, bins: int):
        self._name, self._sums = name, torch.zeros(3, bins, dtype=torch.float64)  # examples, right, confidence

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        rows, classes = labeled_rows(self._name, outputs, targets)
        confidence, answers = log_probabilities(rows).exp().max(-1)
        n = self._sums.shape[1]
        places = ((confidence * n).ceil().nan_to_num(1) - 1).clamp(0, n - 1).long()
        values = torch.stack([torch.ones_like(confidence), (answers == classes).double(), confidence])
        self._sums += torch.zeros_like(self._sums, device=rows.device).index_add_(1, places, values).cpu()

    def value(self) -> float:
        examples, right, confidence = self._sums
        return float((right - confidence).abs().sum() / examples.sum())


class Perplexity:
    """The exponential of the mean negative log-likelihood of the classes, or of the tokens that count."""

    def __init__(self, name: str) -> None:
        self._name, self._sum, self._n = name, 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        rows, classes = labeled_rows(self._name, outputs, targets)
        size = max(1, _BLOCK // rows.shape[1])
        for scores, wanted in zip(torch.split(rows, size), torch.split(classes, size), strict=True):
            self._sum -= float(log_probabilities(scores).gather(1, wanted[:, None]).sum())
        self._n += len(classes)

    def value(self) -> float:
        return _exponential(self._sum / self._n) if self._n else nan


def _exponential(x: float) -> float:
    return exp(x) if x < _LARGEST_EXPONENT else (x if isnan(x) else inf)


@metrics.register("accuracy")
def accuracy() -> Metric:
    """Share of right answers; of sequences, the mean over examples of the share of right places.

    A class is right if its score is the highest. Targets that are 0 or 1 count label by label. This is the metric of
    tasks with classes by default.
    """
    return replace(ACCURACY, streaming=Accuracy)


@metrics.register("balanced_accuracy")
def balanced_accuracy() -> Metric:
    """Mean over classes of the share of their examples that are right (recall): each class counts alike.

    Classes without test examples are left out, as in scikit-learn.
    """
    return Metric("balanced_accuracy", streaming=partial(BalancedAccuracy, "balanced_accuracy"), unit=SHARE)


@metrics.register("f1")
def f1(
    *,
    average: Annotated[
        Literal["macro", "micro", "weighted"],
        "Mean over classes, over all decisions, or over classes by their examples",
    ] = "macro",
) -> Metric:
    """F1 score, 2 · precision · recall / (precision + recall): macro, micro or weighted over classes or labels.

    For one yes-or-no answer it is the F1 score of yes. All is as in scikit-learn.
    """
    name = "f1" if average == "macro" else f"f1_{average}"
    return Metric(name, streaming=partial(F1, name, average), best=1.0)


@metrics.register("topk")
def topk(*, k: Annotated[int, "Number of highest scores"] = 5) -> Metric:
    """Share of examples whose class is among the k highest scores; it is recorded as top5."""
    if k < 1:
        raise BadInput(f"--metric topk:k={k}: must be 1 or more")
    return Metric(f"top{k}", streaming=partial(TopK, f"top{k}", k), unit=SHARE)


@metrics.register("ece", paper="Guo et al. 2017, On Calibration of Modern Neural Networks")
def ece(*, bins: Annotated[int, "Number of bins of confidence, equally wide"] = 15) -> Metric:
    """Expected calibration error: how far the confidence of answers is from the share that is right."""
    if not 1 <= bins <= _MOST_BINS:
        raise BadInput(f"--metric ece:bins={bins}: must be between 1 and {_MOST_BINS:,}")
    return Metric("ece", streaming=partial(CalibrationError, "ece", bins), higher_is_better=False, best=0.0)


@metrics.register("perplexity")
def perplexity() -> Metric:
    """Exponential of the mean negative log-likelihood of the tokens that count, or of the classes."""
    return Metric("perplexity", streaming=partial(Perplexity, "perplexity"), higher_is_better=False, best=1.0)
