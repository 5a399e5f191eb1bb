"""Signals end a command with a checkpoint, from which the run goes on to the same bits."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.config.spec import Spec
from tarry.record import checkpoint
from tarry.runs import signals
from tarry.runs.simulation import build_simulation
from tests.helpers.processes import PATIENCE, descendants, process_ended, wait_until

FLAGS = ["--updates", "200", "--failure-rate", "0.1", "--eval-every", "100", "--epochs", "80", "--seed", "5"]
SETTINGS: dict[str, Any] = {"updates": 200, "failure_rate": 0.1, "eval_every": 100, "epochs": 80, "seed": 5}
NEVER = ["--checkpoint-every", "100000"]


def start(*args: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from tarry.cli.app import main; main()", *args],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
    )


def wait_for_logs(process: subprocess.Popen[str], *folders: Path) -> None:
    """Wait until the log of every run, which is written once a second, has an arrival."""
    wait_until(lambda: all(map(_has_arrival, folders)) or process.poll() is not None)


def _has_arrival(folder: Path) -> bool:
    log = folder / "events.jsonl"
    return log.exists() and b'"arrival"' in log.read_bytes()


def saved(folder: Path) -> list[Path]:
    return list((folder / "checkpoints").glob("*.safetensors"))


def sha256(folder: Path) -> str:
    return str(json.loads((folder / "result.json").read_text())["weights_sha256"])


class Stop(Exception):
    pass


class Waiting:
    """Raises at one wait, before or after what is waited for."""

    def __init__(self, turn: int, *, after: bool):
        self.turn, self.after, self.count = turn, after, 0

    def __enter__(self) -> None:
        self.count += 1
        if self.count == self.turn and not self.after:
            raise Stop

    def __exit__(self, *_: object) -> None:
        if self.count == self.turn and self.after:
            raise Stop


CASES: dict[str, dict[str, Any]] = {
    "all clients at one instant": {"method": "fedasync", "delay": "constant:seconds=30", "time": 100.0},
    "a server between arrivals": {"method": "twafl", "time": 1500.0},
    "a target that the first weights reach": {
        "method": "asgd",
        "target": 1e-9,
        "time": 300.0,
        "delay": "constant:seconds=30",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_wherever_a_simulator_is_interrupted_while_it_waits_it_goes_on_to_the_same_events(case: str) -> None:
    given = {"task": {"name": "digits", "limit": 200, "hidden": 8}, "clients": 4, "epochs": 1, "eval_every": 40}
    simulation = build_simulation(Spec.of({**given, **CASES[case]}))

    def simulator(events: list[Any]) -> Any:
        listen = [lambda e: events.append(e._replace(weights=e.weights.numpy().tobytes()))]
        return simulation.simulator(simulation.executor(), listen)

    expected: list[Any] = []
    whole = simulator(expected)
    whole._waiting = counted = Waiting(0, after=False)
    whole.run()
    assert counted.count >= 2
    for turn, after in itertools.product(range(1, counted.count + 1), (False, True)):
        events: list[Any] = []
        first = simulator(events)
        first._waiting = Waiting(turn, after=after)
        with pytest.raises(Stop):
            first.run()
        second = simulator(events)
        second.load(first.save())
        second.run()
        assert events == expected, (turn, after)
        assert second.engine.curve == whole.engine.curve


@pytest.fixture(scope="module")
def whole() -> str:
    return tarry.run("orthofl", "digits", **SETTINGS).weights_sha256


@pytest.mark.parametrize(
    ("number", "executor"),
    [
        (signal.SIGTERM, []),
        (signal.SIGHUP, ["--workers", "2"]),
        (signal.SIGINT, ["--workers", "2"]),
        (signal.SIGTERM, ["--executor", "batched", "--workers", "2"]),
        (signal.SIGHUP, ["--executor", "batched"]),
        (signal.SIGINT, ["--executor", "auto", "--workers", "2"]),
        (signal.SIGTERM, ["--executor", "auto"]),
    ],
)
def test_a_signal_writes_a_checkpoint_and_says_how_to_go_on(number, executor, tmp_path, whole) -> None:
    out = tmp_path / "my run"
    process = start("run", "--method", "orthofl", *FLAGS, *NEVER, *executor, "--out", str(out))
    wait_for_logs(process, out)
    workers = descendants(process.pid)
    assert saved(out) == []
    began = time.monotonic()
    os.killpg(process.pid, number)
    said, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, err
    assert time.monotonic() - began < 10
    by = "" if number == signal.SIGINT else f" by {number.name}"
    assert f"error: interrupted{by}; `tarry resume '{out}'` resumes it\n" in err
    assert "Traceback" not in err
    assert said == ""
    assert all(process_ended(w) for w in workers)
    (newest,) = saved(out)
    assert checkpoint.load(newest, "cpu")["simulator"]["updates"] > 0
    from_the_start = tmp_path / "from the start"  # with the same choice of stacks, on which rounding depends
    shutil.copytree(out, from_the_start)
    shutil.rmtree(from_the_start / "checkpoints")
    again = tarry.resume(out)
    if "batched" in executor or "auto" in executor:
        assert again.weights_sha256 == tarry.resume(from_the_start).weights_sha256
    else:
        assert again.weights_sha256 == whole


SLOW = """
import time, torch, tarry

def loss(out, y):
    time.sleep(SECONDS)
    return torch.nn.functional.cross_entropy(out, y)

def mine():
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(4, 2, generator=g), torch.randint(2, (4,), generator=g)) for _ in range(3)]
    return tarry.Task("mine", lambda: torch.nn.Linear(2, 2), loss, clients, clients[0])
"""


@pytest.mark.parametrize("executor", [[], ["--workers", "2"]])
def test_a_long_visit_does_not_delay_the_end(executor: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        SLOW.replace("SECONDS", "1000 if torch.is_grad_enabled() and y.numel() < 4 else 0")
    )
    out = tmp_path / "r"
    flags = ["--task", "mine.py:mine", "--updates", "9", "--batch", "3", *NEVER, *executor]
    process = start("run", *flags, "--out", str(out), cwd=tmp_path)
    wait_until(lambda: (out / "events.jsonl").exists() or process.poll() is not None)
    time.sleep(1.0)
    process.terminate()
    began = time.monotonic()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, err
    assert time.monotonic() - began < 10
    assert len(saved(out)) == 1


AT_A_PLACE = """
import os, signal, sys
from tarry.cli.app import main
import MODULE as module

before = module.NAME

def signalled(*args, **kw):
    os.kill(os.getpid(), signal.SIGTERM)
    result = before(*args, **kw)
    return result

module.NAME = signalled
main()
"""


@pytest.mark.parametrize(
    ("place", "way_out"),
    [
        ("tarry.runs.run.file_digests", "it had not begun; the same command begins it"),
        ("tarry.runs.run.build_simulation", "it had not begun; the same command begins it"),
        ("tarry.record.run_folder.write_atomic", None),  # of spec.toml and meta.json
        ("tarry.runs.run.Recorder", "`tarry resume r` resumes it"),
        ("tarry.runs.simulation.Pool", "`tarry resume r` resumes it"),
        ("tarry.runs.simulation.Simulator", "`tarry resume r` resumes it"),
        ("tarry.runs.run.make_result", "`tarry resume r` resumes it"),
        ("tarry.runs.run.write_arrivals", "`tarry resume r` resumes it"),
        ("tarry.runs.run.write_result", "`tarry resume r` resumes it"),
    ],
)
def test_a_signal_while_a_run_starts_or_writes_its_result_loses_nothing(place, way_out, tmp_path) -> None:
    module, _, name = place.rpartition(".")
    script = AT_A_PLACE.replace("MODULE", module).replace("NAME", name)
    words = ["run", "--method", "orthofl", "--updates", "20", "--epochs", "1", "--workers", "2", "--out", "r"]

    def done(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            cwd=tmp_path,
        )

    said = done(script, *words)
    assert said.returncode == 143, said.stderr
    assert "Traceback" not in said.stderr
    (line,) = [line for line in said.stderr.splitlines() if "%" not in line]
    if way_out is not None:
        assert line == f"error: interrupted by SIGTERM; {way_out}"
    again = ["resume", "r"] if "resume" in line else words
    said = done("from tarry.cli.app import main; main()", *again)
    assert said.returncode == 0, said.stderr
    assert sha256(tmp_path / "r") == tarry.run("orthofl", "digits", updates=20, epochs=1).weights_sha256


def test_without_a_folder_nothing_is_kept_and_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    process = start("run", "--updates", "100000000", cwd=tmp_path)
    time.sleep(0.1)
    wait_until(lambda: process.poll() is not None or _handles_sigterm(process.pid))
    time.sleep(1.0)
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert "error: interrupted by SIGTERM; nothing of it is saved: it had no --out\n" in err
    assert list(tmp_path.iterdir()) == []


def _handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_a_comparison_writes_a_checkpoint_of_every_run_that_is_under_way(tmp_path: Path) -> None:
    out = tmp_path / "c"
    methods = ["--method", "fedasync", "--method", "orthofl", "--seeds", "0", "--workers", "2"]
    flags = [*FLAGS[:-2], *NEVER, "--out", str(out)]
    process = start("compare", *methods, *flags)
    folders = [out / label / "seed-0" for label in ("fedasync", "orthofl")]
    wait_for_logs(process, *folders)
    os.killpg(process.pid, signal.SIGTERM)  # the parent passes it on: the second one must not end a run
    began = time.monotonic()
    _, err = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < 10
    assert process.returncode == 143, err
    assert f"error: interrupted by SIGTERM; the same command resumes with what is in {out}: tarry compare" in err
    assert [len(saved(f)) for f in folders] == [1, 1]
    again = start("compare", *methods, *flags)
    again.communicate(timeout=PATIENCE)
    for folder in folders:
        name = folder.parent.name
        alone = tarry.run(name, "digits", **{**SETTINGS, "seed": 0})
        assert sha256(folder) == alone.weights_sha256


def test_a_program_that_imports_tarry_keeps_its_handlers() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    seen: list[Any] = []
    tarry.run("fedasync", "digits", updates=2, callbacks=[lambda e: seen.append(signal.getsignal(signal.SIGTERM))])
    assert set(seen) == {before[1]}
    with signals.handled():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_second_signal_ends_the_process_while_the_first_is_deferred() -> None:
    script = """
import os, signal, time
from tarry.runs.signals import deferred, handled
with handled(), deferred():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    print("still here", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.stdout == "still here\n"
    assert done.returncode == -signal.SIGTERM
