"""Commands that use Ray: a cluster that ends, and signals, end them with one line and a way to continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tarry
from tests.helpers.processes import PATIENCE, descendants, process_ended, wait_until

pytest.importorskip("ray")

FLAGS = [
    "--updates",
    "400",
    "--epochs",
    "10",
    "--eval-every",
    "100",
    "--checkpoint-every",
    "100000",
    "--executor",
    "ray",
]


def start(*args: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-m", "tarry", *args, "--workers", "2"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_rows(process: subprocess.Popen[str], out: Path, enough: int = 3) -> None:
    def rows() -> int:
        return sum(log.read_bytes().count(b'"arrival"') for log in out.rglob("events.jsonl"))

    wait_until(lambda: rows() >= enough or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def raylet(pid: int) -> int:
    (found,) = [p for p in descendants(pid) if b"raylet/raylet\0" in Path(f"/proc/{p}/cmdline").read_bytes()]
    return found


def end_with(process: subprocess.Popen[str], code: int) -> str:
    """Return the one line that the command prints; none of its processes is left."""
    family = descendants(process.pid)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err
    assert out == ""
    (line,) = [line for line in err.splitlines() if "%" not in line]
    assert line.startswith("error: ")
    wait_until(lambda: all(process_ended(p) for p in family))
    return line


def test_a_run_whose_raylet_is_killed_names_the_cluster_and_resumes_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "r"
    process = start("run", "--method", "orthofl", *FLAGS, "--out", str(out))
    wait_for_rows(process, out)
    os.kill(raylet(process.pid), signal.SIGKILL)
    line = end_with(process, 2)
    assert "the Ray cluster " in line
    assert " has ended" in line
    assert line.endswith(f"; `tarry resume {out}` resumes it")
    again = tarry.resume(out, executor="inline")
    whole = tarry.run("orthofl", updates=400, epochs=10, eval_every=100.0)
    assert again.weights_sha256 == whole.weights_sha256


def test_a_signal_to_all_processes_of_a_terminal_writes_a_checkpoint_of_a_run_on_ray(tmp_path: Path) -> None:
    out = tmp_path / "r"
    process = start("run", "--method", "orthofl", *FLAGS, "--out", str(out))
    wait_for_rows(process, out)
    os.killpg(process.pid, signal.SIGINT)
    assert end_with(process, 130) == f"error: interrupted; `tarry resume {out}` resumes it"
    assert len(list(out.glob("checkpoints/*.safetensors"))) == 1
    again = tarry.resume(out, executor="pool")
    whole = tarry.run("orthofl", updates=400, epochs=10, eval_every=100.0)
    assert again.weights_sha256 == whole.weights_sha256


COMPARE = ["compare", "--method", "fedasync", "--method", "orthofl", "--seeds", "0", *FLAGS, "--updates", "100000"]


def test_a_comparison_on_ray_writes_a_checkpoint_of_every_run_when_it_is_ended(tmp_path: Path) -> None:
    out = tmp_path / "c"
    process = start(*COMPARE, "--out", str(out))
    for label in ("fedasync", "orthofl"):
        wait_for_rows(process, out / label)
    process.terminate()
    assert end_with(process, 143).startswith("error: interrupted by SIGTERM; the same command resumes with what is in")
    assert sorted(p.parts[-4] for p in out.rglob("checkpoints/*.safetensors")) == ["fedasync", "orthofl"]


def test_a_comparison_whose_raylet_is_killed_names_the_cluster(tmp_path: Path) -> None:
    out = tmp_path / "c"
    process = start(*COMPARE, "--out", str(out))
    wait_for_rows(process, out)
    os.kill(raylet(process.pid), signal.SIGKILL)
    line = end_with(process, 2)
    assert "the Ray cluster " in line
    assert " has ended" in line
    assert f"; the same command resumes with what is in {out}: tarry compare" in line
