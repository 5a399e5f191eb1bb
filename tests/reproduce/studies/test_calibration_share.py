"""Sec. 5.6 of OrthoFL: the exponent of a known law, the layout of noise, and a small study as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tarry.reproduce.studies.calibration_share import growth, noise_layout, run


def test_the_exponent_of_a_known_law() -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert growth(sizes, [3.0 * n for n in sizes]) == pytest.approx(1.0)
    assert growth(sizes, [0.1 * n**2 for n in sizes]) == pytest.approx(2.0)


def test_a_layout_of_noise_has_the_size_and_the_layers() -> None:
    layout = noise_layout(101, 4)
    assert layout.size == layout.n_params == 101
    assert len(layout.layers) == 4


def test_a_visit_is_so_many_steps(tmp_path: Path) -> None:
    model = {"shape": [1, 8, 8], "classes": 3, "examples": 70}
    options: Any = {"models": {"mlp": model}, "sizes": [100, 1000], "layers": 2, "batch": 32, "repeats": 2, "steps": 1}
    found = run(options, quick=True, seeds=[0], device="cpu", folder=tmp_path, tell=print)["numbers"]
    assert set(found) == {"mlp", "noise"}
    assert found["mlp"]["visit"]["0"]["share"] == 100
    for column in ("calibration", "aggregation"):
        own, visit = found["mlp"][column]["0"], found["mlp"]["visit"]["0"]
        assert own["share"] == pytest.approx(100 * own["seconds"] / visit["seconds"], rel=1e-3)
        assert own["seconds"] > 0
