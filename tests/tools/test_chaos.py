"""A short round of chaos testing (`make chaos` plays a long one), and what it requires of a run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tools.chaos.checks import check_message, check_same
from tools.chaos.commands import Failure

import tarry
from tests.helpers.processes import PATIENCE

ROOT = Path(__file__).parents[2]
KINDS = ("kill", "damage", "signal", "worker", "concurrent", "disk", "clock", "compare")
SEED = 5


def test_one_drill_of_each_kind_passes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.chaos", "--rounds", "1", "--seed", str(SEED), "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("] ")[1].partition(":")[0] for line in done.stdout.splitlines() if line.startswith("[")] == [
        f"ok {kind} {SEED}" for kind in KINDS
    ]
    assert "\n0 failed\n" in done.stdout
    assert [*tmp_path.iterdir()] == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chaos") / "run"
    tarry.run("fedasync", "digits", clients=3, updates=6, out=folder)
    return folder


def test_runs_are_the_same_but_for_wall_time(finished: Path, tmp_path: Path) -> None:
    tarry.run("fedasync", "digits", clients=3, updates=6, out=tmp_path / "again")
    check_same(tmp_path / "again", finished)


@pytest.mark.parametrize("name", ["events.jsonl", "arrivals.csv", "model.safetensors", "result.json"])
def test_a_difference_in_any_file_is_a_failure(finished: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "other"
    shutil.copytree(finished, folder)
    path = folder / name
    if name == "result.json":
        path.write_text(json.dumps({**json.loads(path.read_text()), "updates": 7}))
    else:
        path.write_bytes(path.read_bytes().replace(b"0", b"1"))
    with pytest.raises(Failure, match=name.replace(".", r"\.")):
        check_same(folder, finished)


@pytest.mark.parametrize(
    ("code", "text", "codes", "failure"),
    [
        (0, "", (), None),
        (2, "error: runs/a: it is not an empty folder\n", (), None),
        (1, "", (0,), "wrong exit code"),
        (-11, "", (), "wrong exit code"),
        (2, "", (), "no message"),
        (2, "Traceback (most recent call last):\nerror: x\n", (), "a traceback"),
    ],
)
def test_a_command_ends_with_a_code_and_a_message(
    code: int, text: str, codes: tuple[int, ...], failure: str | None
) -> None:
    child: Any = SimpleNamespace(title="tarry run", code=code, text=text)
    if failure is None:
        check_message(child, *codes)
        return
    with pytest.raises(Failure, match=failure):
        check_message(child, *codes)
