"""Operations of a linear model by hand: FedAvg's, and FedSOL's by the part that is perturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tarry.reproduce.studies.flops import run


def test_operations_of_two_linear_maps_by_hand(tmp_path: Path) -> None:
    """16 to 3 to 5 on 4 examples: a multiplication and an addition for every weight and example.

    Backward, both maps' weights need as many, and the hidden values as many as the second map.
    """
    options: Any = {"model": {"name": "mlp", "hidden": 3}, "shape": [1, 4, 4], "classes": 5, "batch": 4, "steps": 2}
    options |= {"epochs": 3, "methods": {"fedavg": "fedavg", "all": {"name": "fedsol", "part": "all"}}}
    found = run(options, quick=True, seeds=[0], device="cpu", folder=tmp_path, tell=print)["numbers"]
    forward, backward = 2 * 4 * (48 + 15), 2 * 4 * (48 + 15 + 15)
    steps = 3 * 2
    assert found["fedavg"]["visit"]["0"]["gflops"] == pytest.approx(steps * (forward + backward) / 1e9, rel=1e-4)
    # a pass and its gradient twice in every step but the first, which is not perturbed; the received outputs of every
    # example once
    whole = (2 * steps - 1) * (forward + backward) + 2 * forward
    assert found["all"]["visit"]["0"]["gflops"] == pytest.approx(whole / 1e9, rel=1e-4)
    assert "memory" not in found["all"]["visit"]["0"]


def test_the_head_takes_less_than_the_body_and_the_body_no_more_than_all(tmp_path: Path) -> None:
    options: Any = {"shape": [1, 28, 28], "steps": 1, "batch": 4, "epochs": 2}
    found = run(options, quick=True, seeds=[0], device="cpu", folder=tmp_path, tell=print)["numbers"]
    of = {name: cells["visit"]["0"]["relative"] for name, cells in found.items()}
    assert of["fedavg"] == 1
    assert 1 < of["head"] < of["body"] <= of["all"]
