"""Early stopping: what counts as better, and which weights are the best."""

from __future__ import annotations

from math import nan

import pytest
import torch

from tarry.core.metric import ACCURACY, LOSS, CurvePoint, Metric
from tarry.engine.early_stopping import EarlyStopping


def stops(values: list[float | None], patience: int, metric: Metric) -> tuple[int | None, float, list[int]]:
    """Return the place of the value that stops, the best weight, and the places of improvements."""
    rule, improved = EarlyStopping(patience, metric), []
    for i, value in enumerate(values):
        point = CurvePoint.of(float(i), i, {metric.name: value}, metric.name)
        done = rule.observe(point, torch.full((2,), float(i)))
        if rule.best is point:
            improved.append(i)
        if done:
            break
    else:
        i = None  # type: ignore[assignment]
    assert rule.weights is not None
    return i, rule.weights[0].item(), improved


@pytest.mark.parametrize(
    ("values", "metric", "expected"),
    [
        ([0.1, 0.2, 0.2, 0.3, 0.1, 0.3, 0.9], ACCURACY, (5, 3.0, [0, 1, 3])),  # equal is not better
        ([3.0, 2.0, 2.5, 1.0, 4.0, 5.0, 0.0], LOSS, (5, 3.0, [0, 1, 3])),
        ([0.1, nan, 0.2, nan, None, 0.9], ACCURACY, (4, 2.0, [0, 2])),
        ([nan, nan, nan, 0.5], ACCURACY, (2, 0.0, [0])),
        ([0.1, 0.2, 0.3], ACCURACY, (None, 2.0, [0, 1, 2])),
    ],
)
def test_two_evaluations_without_a_better_score_end_a_run_of_patience_two(values, metric, expected):
    assert stops(values, 2, metric) == expected


def test_the_best_weights_are_a_copy():
    rule, weights = EarlyStopping(1, ACCURACY), torch.zeros(3)
    rule.observe(CurvePoint.of(0.0, 0, {"accuracy": 0.5}, "accuracy"), weights)
    weights += 1
    assert rule.weights.tolist() == [0, 0, 0]


def test_a_saved_record_continues():
    rule = EarlyStopping(2, ACCURACY)
    points = [CurvePoint.of(float(i), i, {"accuracy": a, "f1": a}, "accuracy") for i, a in enumerate((0.5, 0.4, 0.3))]
    for point in points[:2]:
        rule.observe(point, torch.full((1,), point.time))
    other = EarlyStopping(2, ACCURACY)
    other.load(rule.save())
    assert other.best == rule.best
    assert other.observe(points[2], torch.zeros(1))
    assert other.weights.item() == 0.0
