from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tarry.core.errors import BadInput
from tarry.core.rng import generator
from tarry.tasks import partitions, tasks
from tests.helpers.by_flags import build_by_flags

RNG = np.random.default_rng(2)


@pytest.fixture
def x(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:  # type: ignore[type-arg]
    """har.npz in TARRY_DATA: 12 windows of 128 readings in 6 channels, one of them constant."""
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    x = RNG.normal(3, 5, (12, 128, 6)).astype(np.float32)
    x[:, :, 4] = 9.81
    subject, is_test = np.array([5, 5, 2, 2, 9, 9, 5, 5, 2, 2, 9, 9], np.uint8), np.arange(12) >= 8
    np.savez(tmp_path / "har.npz", x=x, y=np.arange(12) % 6, subject=subject, is_test=is_test)
    return x


def test_series_are_channels_first_and_normalized_by_the_training_set(x: np.ndarray) -> None:  # type: ignore[type-arg]
    task = tasks.build("har")
    assert task.train is not None
    assert task.test is not None
    wide = x.astype(np.float64).transpose(0, 2, 1)
    mean, std = wide[:8].mean((0, 2), keepdims=True), wide[:8].std((0, 2), keepdims=True)
    std[0, 4] = 1
    assert task.train[0].shape == (8, 6, 128)
    assert np.allclose(task.train[0].numpy(), (wide[:8] - mean) / std, atol=1e-4)
    assert np.allclose(task.test[0].numpy(), (wide[8:] - mean) / std, atol=1e-4)
    assert task.train[0].dtype == torch.float32


def test_har_is_trained_by_a_network_for_series_and_cut_by_people(x: np.ndarray) -> None:  # type: ignore[type-arg]
    task = tasks.build("har")
    assert task.train is not None
    assert task.model()(task.train[0]).shape == (8, 6)
    assert any(isinstance(m, torch.nn.Conv1d) for m in task.model().modules())
    clients = task.split(partitions.build("groups"), 3, generator(0)).clients
    assert sorted(len(y) for _, y in clients) == [2, 2, 4]
    assert tasks.build("har", limit=3).groups.tolist() == [5, 5, 2]  # type: ignore[union-attr]


def test_options_of_the_network_for_series_are_flags(x: np.ndarray) -> None:  # type: ignore[type-arg]
    small, usual = (
        sum(p.numel() for p in tasks.build("har", **options).model().parameters()) for options in ({"width": 4}, {})
    )
    assert small < usual
    with pytest.raises(BadInput, match=r"--task.model lenet5: "):
        build_by_flags(tasks, "har", model="lenet5")
