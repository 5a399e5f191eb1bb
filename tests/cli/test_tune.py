"""`tarry tune` as a user has it: a table, a file, and a study that is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers.commands import call_command
from tests.helpers.processes import wait_until

METHODS = ("fedavg", "fedprox", "fedasync", "fedbuff:buffer=3", "orthofl", "fedadam")
TASK = ("--task.limit", "80", "--task.hidden", "4", "--clients", "3", "--delay", "lognormal", "--updates", "4")
ARGUMENTS = (
    *("tune", *(word for method in METHODS for word in ("--method", method)), *TASK),
    *("--epochs", "1", "--trials", "2", "--seeds", "1", "--out", "s"),
)


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tarry", *ARGUMENTS], cwd=folder, start_new_session=True, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finished(folder: Path) -> int:
    return len(list((folder / "s").glob("*/seed-*/result.json")))


def kill_after(runs: int, folder: Path) -> None:
    """Start the study, and kill it with its processes when so many runs have finished."""
    process = start(folder)
    wait_until(lambda: finished(folder) >= runs or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_study_that_is_killed_twice_gives_the_same_file_as_one_that_is_not(tmp_path, monkeypatch):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
    monkeypatch.chdir(whole)
    code, printed = call_command(*ARGUMENTS)
    assert code == 0, printed
    assert "next: tarry compare --tuned s/tuned.toml" in printed
    for runs in (2, 7):
        kill_after(runs, killed)
        assert not (killed / "s" / "tuned.toml").exists()
    monkeypatch.chdir(killed)
    code, printed = call_command(*ARGUMENTS)
    assert code == 0, printed
    assert (killed / "s" / "tuned.toml").read_text() == (whole / "s" / "tuned.toml").read_text()
    assert (killed / "s" / "trials.csv").read_text() == (whole / "s" / "trials.csv").read_text()
    code, printed = call_command("resume", "s")
    assert (code, "tune --method fedavg" in printed) == (2, True)
    code, printed = call_command("compare", "--tuned", "s/tuned.toml", "--seeds", "2", "--out", "c")
    assert code == 0, printed
    assert "Tuned on validation data: lr of fedavg; lr, mu of fedprox; lr, alpha, a of fedasync" in printed


def test_the_spaces_of_methods_are_shown_and_mistakes_name_the_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed = call_command("methods", "fedprox")
    assert code == 0
    assert "search space of `tarry tune`: lr 0.001..1:log  method.mu 0.001,0.01,0.1,1.0" in printed
    for arguments, message in (
        (("--seeds", "1000"), "--seeds 1000: 1,000 seeds for each trial; name fewer (`1000,` is one seed)"),
        (("--space", "lr"), "--space lr: wants NAME=VALUES, as in lr=0.001..1:log"),
        (("--trials", "0"), "--trials 0: must be 1 or more"),
        (("--method.mu", "1"), "--method.mu: which method? In a comparison say --method NAME:mu=VALUE"),
    ):
        code, printed = call_command("tune", *arguments)
        assert (code, list(tmp_path.iterdir())) == (2, [])
        assert message in printed
