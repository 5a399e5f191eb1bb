"""A real federation over Flower, on the loopback. One test, so that it is started once however tests are spread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tarry.deploy.local.processes import began
from tarry.record.result import Result
from tarry.record.rows import read_rows
from tarry.runs.replay import replay
from tests.helpers.processes import wait_until

ENVIRONMENT = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1",
               "COLUMNS": "200"}  # fmt: skip


def tarry(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tarry", *words], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def over(folder: Path) -> None:
    def logs() -> str:
        return "".join(p.read_text()[-2000:] for p in sorted((folder / "flower" / "logs").glob("*.log")))

    wait_until((folder / "result.json").is_file, logs)


@pytest.fixture
def federation(tmp_path):
    folder = tmp_path / "federation"
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    told = tarry(
        "federation", "up", "--out", str(folder), "--clients", "2", "--method", "orthofl:placement=client", "--task",
        "digits:limit=300,hidden=16", "--epochs", "1", "--updates", "8", "--eval-every", "1", "--ask-every", "4",
    )  # fmt: skip
    try:
        assert "run " in told
        over(folder)
        yield folder
    finally:
        pids = [p["pid"] for p in json.loads((folder / "flower" / "processes.json").read_text())]
        said = tarry("federation", "down", str(folder))
        assert "ended: " in said
        assert all(began(pid) is None for pid in pids)
        assert other.poll() is None, "others are left alone"
        other.kill()
        other.wait()


def it_learns_and_leaves_the_record_of_a_run(federation):
    result = Result.read(federation)
    assert result.updates == 8
    assert result.final_accuracy is not None
    assert result.bytes_up > 8 * 4 * 1000
    kinds = [r["kind"] for r in read_rows(federation / "events.jsonl")]
    assert kinds.count("arrival") == 8
    assert kinds.count("join") == 2
    assert (federation / "model.safetensors").is_file()


def a_simulator_reaches_its_weights_to_the_bit(federation, cli):
    told = replay(federation)
    assert told.first_difference is None
    assert told.recorded_sha256 == told.weights_sha256
    assert "the federation's weights to the bit" in cli("replay", federation)[1]


def status_shows_its_statistics(federation, cli):
    code, said = cli("federation", "status", federation)
    assert code == 0
    assert "ended (updates)" in said
    assert "0 client 0" in said
    full = json.loads(cli("federation", "status", federation, "--json")[1])
    assert sum(c["updates"] for c in full["clients"]) == 8
    assert full["rejected"] == {}


def its_delays_become_a_model(federation, cli, tmp_path):
    assert "--delay trace" in cli("delays", "fit", federation, "--out", tmp_path / "d.csv")[1]
    for delay in (["trace"], ["empirical", "--delay.column", "seconds"]):
        said = cli("run", "--task", "digits:limit=200,hidden=8", "--clients", "2", "--epochs", "1", "--updates", "3",
                   "--delay.path", tmp_path / "d.csv", "--delay", *delay)  # fmt: skip
        assert "3 updates" in said[1]


def reports_read_it(federation, cli, tmp_path):
    assert "orthofl" in cli("report", federation, "--html", tmp_path / "page.html")[1]
    assert (tmp_path / "page.html").is_file()


def what_is_over_is_not_begun_again(federation, cli):
    code, said = cli("federation", "up", "--out", federation)
    assert code == 2
    assert "is over" in said


def test_a_federation_learns_is_replayed_is_reported_and_ended(federation, cli, tmp_path):
    it_learns_and_leaves_the_record_of_a_run(federation)
    a_simulator_reaches_its_weights_to_the_bit(federation, cli)
    status_shows_its_statistics(federation, cli)
    its_delays_become_a_model(federation, cli, tmp_path)
    reports_read_it(federation, cli, tmp_path)
    what_is_over_is_not_begun_again(federation, cli)
