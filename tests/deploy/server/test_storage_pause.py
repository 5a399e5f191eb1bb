"""A disk that is full for a while: the server pauses, loses nothing that it accepted, and reaches the same bits."""

from __future__ import annotations

import itertools
import json

import pytest

from tarry.core.errors import StorageError
from tarry.deploy.config import read_config
from tarry.deploy.server.problem_log import ProblemLog
from tarry.deploy.server.stats import FederationStats
from tarry.deploy.server.storage_pause import continue_when_writable
from tarry.record.journal import Journal
from tarry.record.result import Result, sha256
from tarry.record.rows import Log, read_rows
from tarry.runs.build import build_run
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, nodes, small_plan
from tests.helpers.served import served

FULL = "journal.jsonl: it cannot be written (No space left on device); free space on this disk"


@pytest.mark.parametrize(
    ("kind", "name", "call"),
    [(Journal, "append", n) for n in (1, 2, 7, 12, 19, 26)]
    + [(Journal, "save_update", 3), (Journal, "checkpoint", 2), (Log, "sync", 9), (FederationStats, "write", 5)],
)
def test_a_server_continues_after_writes_that_failed(kind, name, call, tmp_path, monkeypatch, caplog):
    """Three calls in a row fail; each of them ends a driver."""
    made = small_plan(method="orthofl", updates=16)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    folder, plain, calls, paused, weights = tmp_path / "out", getattr(kind, name), itertools.count(1), [], []

    def fail(self, *args, **named):
        if call <= next(calls) < call + 3:
            raise StorageError(FULL)
        return plain(self, *args, **named)

    monkeypatch.setattr(kind, name, fail)

    def drive() -> str:
        d = driver(made, grid, folder, checkpoint_every=6.0)
        try:
            why = d.run(sleep=grid.clock.sleep, on_progress=lambda d: d.stats.write(folder / "status.json", {}))
            weights.append(sha256(d.engine.server.output_weights))
            return why
        finally:
            d.close()

    folder.mkdir()
    why = continue_when_writable(drive, folder, lambda: False, on_pause=paused.append, sleep=grid.clock.sleep)
    assert why == "updates"
    assert paused == [FULL] * 3
    assert [r.getMessage() for r in caplog.records].count(
        f"{FULL}. Nothing accepted is lost; the federation continues when this file can be written"
    ) == 1
    numbers = [r["number"] for r in read_rows(folder / "journal.jsonl") if r["op"] == "update"]
    assert len(numbers) == len(set(numbers)) == 16
    assert replay(folder).weights_sha256 == weights[0]


def test_the_server_app_continues_after_a_pause_with_a_model_of_its_own(tmp_path, monkeypatch):
    """The model of the first driver was used for its evaluations, which leave nothing in it."""
    config = {"method": "fedasync", "task": "digits", "clients": 3, "updates": 12, "eval-every": 4.0}
    setting = read_config({**config, "out": str(tmp_path / "out")})
    grid = FakeGrid(Clock(), nodes(build_run(setting.spec), tmp_path / "homes"))
    plain, calls = Journal.save_update, itertools.count(1)

    def fail(self, number, result):
        if next(calls) == 6:
            raise StorageError(FULL)
        plain(self, number, result)

    monkeypatch.setattr(Journal, "save_update", fail)
    assert served(grid, setting) == "updates"
    result = Result.read(tmp_path / "out")
    assert result.updates == 12
    assert len(result.curve) > 2
    assert replay(tmp_path / "out").same


def test_a_pause_ends_when_a_stop_is_requested(tmp_path):
    clock = Clock()

    def fail() -> str:
        raise StorageError(FULL)

    assert continue_when_writable(fail, tmp_path, lambda: clock.now > 1e9 + 100, sleep=clock.sleep) == "stopped"
    assert clock.now < 1e9 + 101


def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_tried(tmp_path):
    reasons: list[str] = []
    missing = tmp_path / "missing"
    assert continue_when_writable(lambda: "never", missing, lambda: bool(reasons), on_pause=reasons.append) == "stopped"
    assert str(missing) in reasons[0]
    assert "check that the folder still exists" in reasons[0]


def test_the_problem_log_keeps_the_newest_lines_in_two_bounded_files(tmp_path):
    problems = ProblemLog(tmp_path, limit=1000)
    for number in range(100):
        problems.append({"number": number, "why": "x" * 40})
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"log.jsonl", "log.jsonl.1"}
    assert max(sizes.values()) <= 1000
    lines = [(tmp_path / name).read_text().splitlines() for name in ("log.jsonl.1", "log.jsonl")]
    numbers = [json.loads(line)["number"] for line in itertools.chain(*lines)]
    assert numbers == list(range(numbers[0], 100))
    assert len(numbers) > 15
