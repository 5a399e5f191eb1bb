"""AUROC: the probability that a positive example has a higher score than a negative one; equal scores count half.

It is exact, so the scores of all examples are kept: one number for each example and class. Values are as in
scikit-learn's roc_auc_score with average="macro": for classes of each class's probability against the rest (ovr).
"""

from __future__ import annotations

from math import nan

import torch
from torch import Tensor

from ..core.metric import Metric
from .forms import is_classes, labeled_rows, log_probabilities, yes_no_rows
from .registry import metrics

__all__ = ["auroc_of"]

_ROWS = 1 << 16  # examples whose probabilities are computed at once


class RankedScores:
    """The scores of all examples so far, and what they should be."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._answers: list[Tensor] = []
        self._classes = False

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self._classes = is_classes(outputs, targets)
        rows, answers = (labeled_rows if self._classes else yes_no_rows)("auroc", outputs, targets)
        self._rows.append(rows.cpu())
        self._answers.append(answers.cpu())

    def value(self) -> float:
        rows, answers = torch.cat(self._rows), torch.cat(self._answers)
        if self._classes:
            parts = [log_probabilities(part) for part in torch.split(rows, _ROWS)]
            values = [
                auroc_of(torch.cat([p[:, c] for p in parts]), answers == c) for c in torch.unique(answers).tolist()
            ]
        else:
            values = [auroc_of(rows[:, c], answers[:, c] == 1) for c in range(rows.shape[1])]
        known = [v for v in values if v is not None]
        return sum(known) / len(known) if known else nan


def auroc_of(scores: Tensor, positive: Tensor) -> float | None:
    """Return the area of one label; None without positive or without negative examples, NaN if a score is NaN.

    Pairs are counted in whole numbers, so that the value is exact up to its last division.
    """
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if not n_positive or not n_negative:
        return None
    if bool(scores.isnan().any()):
        return nan
    _, order = scores.sort()
    _, counts = torch.unique_consecutive(scores[order], return_counts=True)
    sums = torch.cat([torch.zeros(1, dtype=torch.int64), positive[order].long().cumsum(0)])
    ends = counts.cumsum(0)
    positives = sums[ends] - sums[ends - counts]  # of each distinct score
    negatives = counts - positives
    below = negatives.cumsum(0) - negatives
    return int((positives * (2 * below + negatives)).sum()) / (2 * n_positive * n_negative)


@metrics.register("auroc")
def auroc() -> Metric:
    """Area under the ROC curve: of yes or no, of each class against the rest, or of each label; then the mean.

    It is exact, and keeps a number for each example and class. Classes without test examples, and labels that are
    never or always 1, are left out of the mean.
    """
    return Metric("auroc", streaming=RankedScores, best=1.0)
