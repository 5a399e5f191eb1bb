from __future__ import annotations

import sys

import pytest

import tarry
from tarry.core.errors import BadInput
from tarry.core.search_space import OneOf, Range
from tarry.runs.tuning.search import next_point, points

LR, MU = Range(0.001, 1.0, log=True), OneOf(0.001, 0.01, 0.1, 1.0)
SPACE = {"lr": LR, "method.mu": MU}


def test_random_points_are_a_function_of_the_key_and_more_trials_change_none():
    few, many = points("random", SPACE, 4, 7, {}), points("random", SPACE, 9, 7, {})
    assert many[:4] == few
    assert points("random", SPACE, 4, 8, {}) != few
    assert len({str(p) for p in many}) == 9
    assert all(LR.contains(p["lr"]) and MU.contains(p["method.mu"]) for p in many)


def test_the_first_random_point_has_the_defaults():
    first, second, *_ = points("random", SPACE, 3, 7, {"lr": 0.05})
    assert first["lr"] == 0.05
    assert second["lr"] != 0.05


def test_the_learning_rates_of_all_methods_are_the_same_draws():
    alone, both = points("random", {"lr": LR}, 6, 3, {}), points("random", SPACE, 6, 3, {})
    assert [p["lr"] for p in alone] == [p["lr"] for p in both]


@pytest.mark.parametrize("trials", [1, 2, 5, 12, 13])
@pytest.mark.parametrize("space", [{"lr": LR}, SPACE, {**SPACE, "epochs": Range(1, 3, integer=True)}])
def test_a_grid_has_as_many_points_as_trials(space, trials):
    found = points("grid", space, trials, 1, {})
    assert len(found) == len({str(p) for p in found}) == trials


def test_a_grid_that_fits_is_whole():
    found = points("grid", SPACE, 12, 1, {})
    assert sorted({p["lr"] for p in found}) == [0.001, 0.0316, 1.0]
    assert len(found) == 3 * 4
    assert [p["lr"] for p in points("grid", {"lr": LR}, 4, 1, {})] == [0.001, 0.01, 0.1, 1.0]


@pytest.mark.parametrize("search", ["random", "grid"])
def test_a_small_space_is_tried_completely(search):
    assert points(search, {"lr": OneOf(0.1, 0.2), "epochs": Range(1, 2, integer=True)}, 9, 0, {}) == [
        {"lr": 0.1, "epochs": 1},
        {"lr": 0.1, "epochs": 2},
        {"lr": 0.2, "epochs": 1},
        {"lr": 0.2, "epochs": 2},
    ]


def test_optuna_suggests_the_same_point_after_the_same_trials_and_learns_from_them():
    def study(best: float) -> list[float]:
        tried: list[tuple[dict[str, object], float | None]] = []
        for _ in range(25):
            point = next_point(SPACE, tried, 5, {})
            lr = float(point["lr"])
            tried.append((point, None if lr > 0.9 else -abs(lr - best)))
        return [float(str(p["lr"])) for p, _ in tried]

    assert study(0.01) == study(0.01)
    low, high = study(0.003), study(0.5)
    assert sum(lr < 0.05 for lr in low[10:]) > sum(lr < 0.05 for lr in high[10:])


def test_without_optuna_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput, match=r'pip install "tarry\[tune\]"'):
        tarry.tune(["fedavg"], trials=2, search="optuna", updates=2)
