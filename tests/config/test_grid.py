from __future__ import annotations

import pytest

from tarry.config.components import Choice
from tarry.config.grid import expand_grid, expand_methods
from tarry.core.errors import BadInput


def test_settings_with_one_value_are_one_point():
    assert expand_grid({"lr": 0.1, "delay": [1, 2, 3], "metric": "f1,auroc"}) == [
        {"lr": 0.1, "delay": [1, 2, 3], "metric": "f1,auroc"}
    ]


def test_several_values_make_every_combination_in_order():
    points = expand_grid({"lr": "0.1,0.05", "epochs": [1, 5], "seed": 3})
    assert [(p["lr"], p["epochs"]) for p in points] == [(0.1, 1), (0.1, 5), (0.05, 1), (0.05, 5)]
    assert {p["axes"] for p in points} == {"lr,epochs"}
    assert [p["optimizer"] for p in expand_grid({"optimizer": "sgd,adam"})] == ["sgd", "adam"]
    assert [p["batch"] for p in expand_grid({"batch": "8,all"})] == [8, "all"]


def test_parameters_of_shared_components_are_axes():
    points = expand_grid({"partition": {"name": "dirichlet", "alpha": "0.1,1"}})
    assert [p["partition"] for p in points] == [Choice("dirichlet", {"alpha": a}) for a in (0.1, 1.0)]
    assert points[0]["axes"] == "partition.alpha"
    assert len(expand_grid({"delay": {"name": "scripted", "durations": [1, 2]}})) == 1


def test_a_method_with_several_values_is_several_methods():
    found = expand_methods(["fedavg", {"name": "fedbuff", "buffer": [3, 10]}])
    assert found == ["fedavg", Choice("fedbuff", {"buffer": 3}), Choice("fedbuff", {"buffer": 10})]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": "0.1,x"}, "--lr x: wants float, got 'x'"),
        ({"lr": "0.1,0.10"}, "--lr 0.1,0.1: 0.1 is there twice; name it once"),
        ({"lr": []}, "--lr: it has no value; name at least one"),
        (
            {"lr": list(range(1, 200)), "epochs": range(1, 200)},
            "39,601 combinations, and a comparison has at most 10,000",
        ),
        ({"partition": {"name": "dirichlet", "alpha": "1,b"}}, "--partition.alpha b: wants float"),
    ],
)
def test_wrong_values_name_the_flag(settings, message):
    with pytest.raises(BadInput) as e:
        expand_grid(settings)
    assert message in str(e.value)
