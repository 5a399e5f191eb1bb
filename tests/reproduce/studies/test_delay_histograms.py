"""Fig. 8 of OrthoFL: moments of the distributions, and what a client's own draw changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tarry.delays.papers import rpi_moments
from tarry.reproduce.studies.delay_histograms import durations, run, summary


def test_the_summary_of_a_table_by_hand() -> None:
    found = summary(np.array([[1.0, 1.0], [1.0, 5.0]]))
    assert found["mean"] == 2.0
    assert found["sd"] == pytest.approx(3**0.5, rel=1e-4)
    assert found["skewness"] == pytest.approx((3 * -1 + 27) / 4 / 3**1.5, rel=1e-4)
    assert found["lasting"] == pytest.approx(100 / 3, rel=1e-4)  # means 1 and 3, variance 1 of 3
    assert summary(np.full((2, 2), 3.0))["lasting"] == 0.0


def test_derived_delays_have_the_moments_of_the_profiles() -> None:
    mean, sd = rpi_moments()
    found = {name: summary(durations(name, "visit", 50, 400, 1)) for name in ("lognormal", "half-normal")}
    assert found["lognormal"]["mean"] == pytest.approx(mean, rel=0.03)
    assert found["lognormal"]["sd"] == pytest.approx(sd, rel=0.1)
    assert found["half-normal"]["sd"] == pytest.approx(mean * (np.pi / 2 - 1) ** 0.5, rel=0.03)


def test_clients_are_slow_for_good_by_profile_or_by_a_draw_of_their_own(tmp_path: Path) -> None:
    lines: list[str] = []
    options: Any = {"clients": 30, "visits": 100}
    found = run(options, quick=True, seeds=[0], device="cpu", folder=tmp_path, tell=lines.append)
    n = found["numbers"]
    assert n["uniform"]["visit"]["0"]["lasting"] < 5
    assert n["uniform"]["client"]["0"]["lasting"] == pytest.approx(100, abs=1e-3)
    assert 20 < n["rpi"]["visit"]["0"]["lasting"] < 95
    assert "client" not in n["rpi"]
    whole = found["curves"]["uniform"]["a draw for every visit"]
    assert sum(whole["y"]) == pytest.approx(100, abs=0.1)
