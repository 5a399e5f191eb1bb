"""Trackers of a federation: the points of a server that begins again are neither doubled nor lost."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tarry.core.errors import StorageError
from tarry.deploy.config import read_config
from tarry.record.journal import Journal
from tarry.record.result import Result
from tarry.runs.build import build_run
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, nodes
from tests.helpers.served import served
from tests.helpers.track_stores import curves_of_tensorboard

CONFIG = {"method": "fedasync", "task": "digits", "clients": 3, "updates": 12, "eval-every": 4.0}


@pytest.mark.parametrize("checkpoint_every", [3.0, 1e9], ids=["from a checkpoint", "from the journal alone"])
def test_a_tracker_has_the_curve_of_a_federation_that_was_paused(tmp_path, monkeypatch, checkpoint_every):
    config = {**CONFIG, "track": "tensorboard", "checkpoint-every": checkpoint_every, "out": str(tmp_path / "out")}
    setting = read_config(config)
    grid = FakeGrid(Clock(), nodes(build_run(setting.spec), tmp_path / "homes"))
    plain, calls = Journal.save_update, itertools.count(1)

    def fail(self, number, result):
        if next(calls) == 8:
            raise StorageError("journal.jsonl: it cannot be written (No space left on device)")
        plain(self, number, result)

    monkeypatch.setattr(Journal, "save_update", fail)
    assert served(grid, setting) == "updates"
    result = Result.read(tmp_path / "out")
    curves = curves_of_tensorboard(Path(tmp_path / "out" / "tensorboard"))
    assert [(p[0], pytest.approx(p[1], abs=1e-3)) for p in curves["loss"]] == [
        (p.updates, p.time) for p in result.curve
    ]
    assert [p[2] for p in curves["accuracy"]] == pytest.approx([p.accuracy for p in result.curve])
    assert len(result.curve) > 3
    assert curves["bytes_up"][-1][2] == result.bytes_up > 0
    assert replay(tmp_path / "out").same
