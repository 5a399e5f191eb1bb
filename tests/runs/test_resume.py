"""Runs that are killed and taken up again end where they would have ended."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tarry
from tarry.core.errors import BadInput, DamagedFile
from tarry.core.events import Event
from tarry.record import checkpoint
from tarry.record.result import Result
from tests.helpers.interrupted import interrupted_run
from tests.helpers.models import random_clients
from tests.helpers.processes import PATIENCE, descendants, process_ended, wait_until

FLAGS = [
    "--method", "orthofl", "--method.placement", "client", "--partition.alpha", "0.5", "--updates", "200",
    "--failure-rate", "0.1", "--lr", "0.1", "--seed", "5", "--eval-every", "100", "--epochs", "6",
]  # fmt: skip
PYTHON: dict[str, Any] = {
    "method": {"name": "orthofl", "placement": "client"},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "updates": 200,
    "failure_rate": 0.1,
    "lr": 0.1,
    "seed": 5,
    "eval_every": 100,
    "epochs": 6,
}


def start(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from tarry.cli.app import main; main()", *args]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], what: Callable[[], object]) -> None:
    """Wait for what the process does; fail at once if the process ends first."""

    def done() -> bool:
        if what():
            return True
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        return False

    wait_until(done)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out


def count(out: Path) -> int:
    """The number of the newest checkpoint."""
    newest = checkpoint.latest(out / "checkpoints")
    return 0 if newest is None else int(newest.stem)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The same run, uninterrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    tarry.run(**PYTHON, out=out)
    return out


def assert_same(out: Path, whole: Path) -> None:
    ours, theirs = ((p / "events.jsonl").read_text().splitlines() for p in (out, whole))
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False), 1):
        assert a == b, f"events.jsonl, line {number}"
    assert len(ours) == len(theirs)
    for name in ("arrivals.csv", "model.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    ours, theirs = (json.loads((p / "result.json").read_text()) for p in (out, whole))
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    for found in (ours, theirs):  # spec.toml has checkpoint_every; safetensors orders the header of a proof at random
        files = found["bound_to"]["files"]
        found["bound_to"]["files"] = {n: d for n, d in files.items() if n != "spec.toml" and not n.startswith("proofs")}
    unlike = {"wall_s": 0, "sha256": ""}  # the digest counts wall_s
    assert {**ours, **unlike} == {**theirs, **unlike}


def test_killed_before_its_first_checkpoint_a_run_begins_again(tmp_path, whole):
    out = tmp_path / "r"
    process = start("run", *FLAGS, "--checkpoint-every", "1000", "--out", str(out))
    wait_for(process, (out / "events.jsonl").exists)
    kill(process)
    assert count(out) == 0
    assert not (out / "result.json").exists()
    said = finish(start("resume", str(out)))
    assert_same(out, whole)
    assert json.loads((whole / "result.json").read_text())["weights_sha256"] in "".join(said.split())


def test_killed_twice_a_run_ends_in_the_same_bits(tmp_path, whole):
    out = tmp_path / "r"
    process = start("run", *FLAGS, "--checkpoint-every", "0.02", "--out", str(out))
    wait_for(process, lambda: count(out) >= 2)
    kill(process)
    first = count(out)
    process = start("resume", str(out))
    wait_for(process, lambda: count(out) >= first + 2)
    kill(process)
    assert not (out / "result.json").exists()
    assert len(list((out / "checkpoints").iterdir())) <= 3  # two, and perhaps a half-written third
    tarry.resume(out)
    assert_same(out, whole)


def test_killed_with_workers_a_run_leaves_no_orphans_and_ends_in_the_same_bits(tmp_path, whole):
    out = tmp_path / "r"
    process = start("run", *FLAGS, "--workers", "2", "--checkpoint-every", "0.02", "--out", str(out))
    wait_for(process, lambda: count(out) >= 2)
    workers = descendants(process.pid)
    assert len(workers) == 2
    kill(process)
    wait_until(lambda: all(process_ended(w) for w in workers))
    process = start("resume", str(out), "--workers", "2")
    wait_for(process, lambda: len(descendants(process.pid)) == 2)
    workers = descendants(process.pid)
    finish(process)
    assert all(process_ended(w) for w in workers)
    assert_same(out, whole)


def test_interrupted_from_the_keyboard_a_run_stops_with_130_and_goes_on_later(tmp_path, whole):
    out = tmp_path / "r"
    process = start("run", *FLAGS, "--workers", "2", "--checkpoint-every", "0.02", "--out", str(out))
    wait_for(process, lambda: count(out) >= 1)
    workers = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert len(workers) == 2
    assert all(process_ended(w) for w in workers)
    tarry.resume(out)
    assert_same(out, whole)


def test_a_second_process_on_the_same_folder_is_refused_while_the_first_goes_on(tmp_path):
    out = tmp_path / "r"
    process = start("run", *FLAGS, "--checkpoint-every", "0.02", "--out", str(out))
    wait_for(process, lambda: count(out) >= 1)
    with pytest.raises(BadInput, match="another process or thread is at work on this run"):
        tarry.resume(out)
    with pytest.raises(BadInput, match="it holds another run"):
        tarry.run(**PYTHON, out=out)
    kill(process)
    before = everything(out)

    newest = checkpoint.latest(out / "checkpoints")
    assert newest is not None
    content = newest.read_bytes()
    newest.write_bytes(content[: len(content) // 2])
    damaged = everything(out)
    second = start("resume", str(out))
    _, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 2
    assert err.startswith(f"error: checkpoint {newest} is damaged")
    assert "delete it to" in err
    assert "Traceback" not in err
    assert everything(out) == damaged
    assert {**damaged, str(newest.relative_to(out)): content} == before


SLOW = """
import os, sys, time
import torch, tarry
from pathlib import Path

here, out = os.getpid(), sys.argv[1]

def loss(output, y):
    if os.getpid() != here:
        Path(out + f".at-work-{os.getpid()}").touch()
        time.sleep(600)
    return torch.nn.functional.cross_entropy(output, y)

x, y = torch.eye(2), torch.tensor([0, 1])
task = tarry.Task("slow", model=lambda: torch.nn.Linear(2, 2), loss=loss, clients=[(x, y)] * 4)
tarry.run("fedasync", task, delay=[1, 2, 3, 4], updates=4, workers=2, out=out)
"""


def taken(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_the_lock_of_a_killed_run_is_free_at_once_also_when_its_workers_are_in_the_middle_of_a_step(tmp_path):
    out = tmp_path / "r"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(out)], env=env, text=True)
    workers: set[int] = set()
    try:
        wait_for(process, lambda: len(list(tmp_path.glob("r.at-work-*"))) == 2)
        workers = descendants(process.pid)
        process.kill()
        process.wait()
        with open(out / ".lock") as lock:  # the step still takes ten minutes
            wait_until(lambda: taken(lock), lambda: "for the lock of the run, which its workers hold", within=60)
    finally:
        for worker in workers:
            if not process_ended(worker):
                os.kill(worker, signal.SIGKILL)


# The same without processes: a run is broken off by its own callback


def task() -> tarry.Task:
    clients = random_clients([12] * 4, 4, 3, seed=3)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))

    return tarry.Task("own", model=model, loss=cross_entropy, clients=clients, test=clients[0])


def delay(client: int, visit: int) -> float:
    return 1.0 + 0.37 * client + 0.1 * (visit % 3)


METHODS = [
    {"name": "orthofl", "placement": "hybrid"},
    {"name": "orthofl", "ablation": "pairwise"},
    {"name": "orthofl", "state": "reference"},
    {"name": "fedbuff", "buffer": 3},
    "fedavg",
    "fedasync",
]
SETTINGS: dict[str, Any] = {
    "time": 12.0,
    "epochs": 1,
    "batch": 5,
    "failure_rate": 0.2,
    "concurrency": 3,
    "availability": {1: [[0, 5.2], [7, 100]]},
    "eval_every": 1.5,
    "checkpoint_every": 1e-9,
}


def broken(out: Path, after: int, **settings: Any) -> None:
    """A run that ends in the middle of its event number `after`."""
    seen = itertools.count(1)
    interrupted_run(out, lambda _: next(seen) > after, task=task(), delay=delay, **{**SETTINGS, **settings})


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_broken_off_at_any_event_a_run_of_python_objects_ends_in_the_same_bits(tmp_path, method):
    tarry.run(method, task(), delay=delay, **SETTINGS, out=tmp_path / "whole")
    n = len((tmp_path / "whole" / "events.jsonl").read_text().splitlines())
    assert n > 40
    for after in (0, 3, 5, n // 3, n // 2, n - 9, n - 2, n - 1):
        out = tmp_path / str(after)
        broken(out, after, method=method)
        tarry.resume(out, task=task(), delay=delay)
        assert_same(out, tmp_path / "whole")


def test_killed_between_the_last_checkpoint_and_the_result_a_run_ends_the_same(tmp_path):
    """The budget ends on an evaluation, so the last checkpoint already has the last point of the curve."""
    tarry.run("fedasync", task(), delay=delay, **SETTINGS, out=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "r")
    (tmp_path / "r" / "result.json").unlink()
    tarry.resume(tmp_path / "r", task=task(), delay=delay)
    assert_same(tmp_path / "r", tmp_path / "whole")


def test_workers_lookahead_and_checkpoints_may_differ_on_resuming(tmp_path):
    tarry.run("orthofl", task(), delay=delay, **SETTINGS, out=tmp_path / "whole")
    broken(tmp_path / "r", 20, method="orthofl")
    objects = {"task": task(), "delay": delay}
    tarry.resume(tmp_path / "r", **objects, workers=2, lookahead=3, checkpoint_every=5.0)
    assert_same(tmp_path / "r", tmp_path / "whole")


def test_a_half_written_checkpoint_and_a_torn_log_are_no_hindrance(tmp_path):
    tarry.run("orthofl", task(), delay=delay, **SETTINGS, out=tmp_path / "whole")
    broken(tmp_path / "r", 20, method="orthofl")
    (tmp_path / "r" / "checkpoints" / "99999999.safetensors.part").write_bytes(b"half")
    (tmp_path / "r" / "result.json.part").write_bytes(b"{")
    with open(tmp_path / "r" / "events.jsonl", "ab") as f:
        f.write(b'{"kind":"hand_out","ti')
    tarry.resume(tmp_path / "r", task=task(), delay=delay)
    assert_same(tmp_path / "r", tmp_path / "whole")


def test_a_damaged_newest_checkpoint_is_named_and_without_it_the_one_before_serves(tmp_path):
    tarry.run("orthofl", task(), delay=delay, **SETTINGS, out=tmp_path / "whole")
    out = tmp_path / "r"
    broken(out, 25, method="orthofl")
    newest = checkpoint.latest(out / "checkpoints")
    assert newest is not None
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0x10
    newest.write_bytes(bytes(content))
    before = everything(out)
    with pytest.raises(DamagedFile, match=f"{newest.name} is damaged.*delete it to go on from"):
        tarry.resume(out, task=task(), delay=delay)
    assert everything(out) == before
    newest.unlink()
    tarry.resume(out, task=task(), delay=delay)
    assert_same(out, tmp_path / "whole")


def test_resuming_a_finished_run_returns_it_and_touches_nothing(tmp_path):
    result = tarry.run("fedasync", task(), delay=delay, **SETTINGS, out=tmp_path / "r")
    before = everything(tmp_path / "r")
    again = tarry.resume(tmp_path / "r", task=task(), delay=delay)
    assert again == Result.read(tmp_path / "r")
    assert again.weights_sha256 == result.weights_sha256
    assert again.out == tmp_path / "r"
    assert everything(tmp_path / "r") == before


def test_what_resuming_needs_and_what_it_may_not_change_is_said(tmp_path):
    broken(tmp_path / "r", 20, method="orthofl")
    before = everything(tmp_path / "r")
    for objects, words in [
        ({}, "given a Python object as task, delay; resume it from Python"),
        ({"task": task()}, "given a Python object as delay"),
        ({"task": task(), "delay": delay, "lr": 0.5}, "lr is part of what is being resumed and cannot change"),
        ({"task": task(), "delay": delay, "method": "fedavg"}, "method is part of what is being resumed"),
        ({"task": task(), "delay": delay, "worker": 2}, "worker"),
    ]:
        with pytest.raises(BadInput, match=words):
            tarry.resume(tmp_path / "r", **objects)
    assert everything(tmp_path / "r") == before


def test_a_folder_without_a_run_is_said(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadInput, match=r"there is no run here \(no spec.toml\)"):
            tarry.resume(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"method": {"name": "fedasync", "a": None}},
        {"method": {"name": "fedasync", "alpha": torch.tensor(0.5).numpy().astype("float64")[()]}},
    ],
    ids=["none", "numpy"],
)
def test_whatever_run_accepts_can_be_resumed(tmp_path, settings):
    broken(tmp_path / "r", 20, **settings)
    assert tarry.resume(tmp_path / "r", task=task(), delay=delay).updates > 0


def falling(at: tarry.ScheduleInput) -> float:
    return 0.9 ** (at.visit + at.time / 100)


@pytest.mark.parametrize("schedule", ["cosine:by=visits,length=4,warmup=1", falling], ids=["named", "function"])
def test_a_schedule_goes_on_where_it_was(tmp_path, schedule):
    how = {"method": "fedbuff:buffer=2", "lr_schedule": schedule, "clip_norm": 0.5}
    how["server_lr_schedule"] = "linear:by=time,length=200"
    objects = {"lr_schedule": schedule} if callable(schedule) else {}
    tarry.run(task=task(), delay=delay, out=tmp_path / "whole", **{**SETTINGS, **how})
    broken(tmp_path / "r", 23, **how)
    tarry.resume(tmp_path / "r", task=task(), delay=delay, **objects)
    assert_same(tmp_path / "r", tmp_path / "whole")
    assert tarry.verify(tmp_path / "r", rerun="proofs", task=task(), delay=delay, **objects).ok


def test_resuming_goes_on_with_callbacks_and_progress(tmp_path):
    broken(tmp_path / "r", 20, method="orthofl")
    events: list[Event] = []
    steps: list[tarry.Progress] = []
    objects = {"task": task(), "delay": delay}
    result = tarry.resume(tmp_path / "r", callbacks=[events.append], progress=steps.append, **objects)
    assert steps[-1] == tarry.Progress(1.0, 12.0, result.updates, result.final_accuracy)
    logged = (tmp_path / "r" / "events.jsonl").read_text().splitlines()
    assert 0 < len(events) < len(logged)
    assert events[-1].time == json.loads(logged[-1])["time"]


COMMENTS = "# a note of mine\n# lr: tried 0.1 first\n"


def test_comments_in_the_spec_of_a_run_of_python_objects_do_not_keep_it_from_resuming(tmp_path):
    tarry.run("fedasync", task(), delay=delay, **SETTINGS, out=tmp_path / "whole")
    broken(tmp_path / "r", 20, method="fedasync")
    assert json.loads((tmp_path / "r" / "meta.json").read_text())["objects"] == ["task", "delay"]
    spec = tmp_path / "r" / "spec.toml"
    spec.write_text(COMMENTS + spec.read_text())
    tarry.resume(tmp_path / "r", task=task(), delay=delay)
    assert Result.read(tmp_path / "r").weights_sha256 == Result.read(tmp_path / "whole").weights_sha256


def test_comments_in_the_spec_of_a_run_without_objects_do_not_keep_it_from_resuming(tmp_path):
    first = tarry.run("fedasync", "digits", time=300.0, clients=3, out=tmp_path / "r")
    assert json.loads((tmp_path / "r" / "meta.json").read_text())["objects"] == []
    (tmp_path / "r" / "result.json").unlink()
    spec = tmp_path / "r" / "spec.toml"
    spec.write_text(COMMENTS + spec.read_text())
    assert tarry.resume(tmp_path / "r").weights_sha256 == first.weights_sha256


def test_a_folder_without_what_its_settings_are_bound_to_is_not_resumed(tmp_path):
    broken(tmp_path / "r", 20, method="fedasync")
    (tmp_path / "r" / "meta.json").unlink()
    with pytest.raises(DamagedFile, match=r"meta.json is missing; restore it from a copy, or start a new run"):
        tarry.resume(tmp_path / "r", task=task(), delay=delay)


def test_a_changed_setting_is_not_resumed(tmp_path):
    broken(tmp_path / "r", 20, method="fedasync")
    spec = tmp_path / "r" / "spec.toml"
    before = spec.read_text()
    for old, new in (("seed = ", "seed = 1"), ("lr = ", "lr = 1"), ("batch", "# batch"), ("fedasync", "fedavg")):
        assert old in before
        spec.write_text(before.replace(old, new))
        with pytest.raises(DamagedFile, match=r"spec.toml: a setting was changed after the run began; restore it"):
            tarry.resume(tmp_path / "r", task=task(), delay=delay)
    spec.write_text(before)
    assert tarry.resume(tmp_path / "r", task=task(), delay=delay).updates > 0


def test_a_checkpoint_of_another_run_is_not_resumed(tmp_path):
    broken(tmp_path / "r", 20, method="orthofl")
    broken(tmp_path / "other", 20, method="fedavg")
    shutil.rmtree(tmp_path / "r" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "r" / "checkpoints")
    with pytest.raises(DamagedFile, match=r"it is of a run with other settings; restore the checkpoints of this run"):
        tarry.resume(tmp_path / "r", task=task(), delay=delay)


def test_a_damaged_row_before_the_checkpoint_is_found_before_anything_is_trained(tmp_path):
    broken(tmp_path / "r", 20, method="fedasync")
    log = tmp_path / "r" / "events.jsonl"
    damaged = bytearray(log.read_bytes())
    damaged[60] ^= 4
    log.write_bytes(damaged)
    events: list[Any] = []
    with pytest.raises(DamagedFile, match=r"events.jsonl, row 1: it is not what was written.*restore the file"):
        tarry.resume(tmp_path / "r", task=task(), delay=delay, callbacks=[events.append])
    assert events == []
    assert log.read_bytes() == bytes(damaged)


def test_two_threads_do_not_share_a_folder(tmp_path):
    found: list[Any] = []

    def start(_: Any) -> None:
        if not found:
            try:
                found.append(tarry.run("fedavg", task(), delay=delay, **SETTINGS, out=tmp_path / "r"))
            except BadInput as e:
                found.append(e)

    whole = tarry.run("fedasync", task(), delay=delay, **SETTINGS, out=tmp_path / "r", callbacks=[start])
    (error,) = found
    assert "it holds another run" in str(error)
    assert Result.read(tmp_path / "r").weights_sha256 == whole.weights_sha256
    assert tarry.verify(tmp_path / "r").ok
    broken(tmp_path / "b", 20, method="fedasync")
    again: list[Any] = []

    def resumed(_: Any) -> None:
        if not again:
            with pytest.raises(BadInput, match="another process or thread is at work on this run") as e:
                tarry.resume(tmp_path / "b", task=task(), delay=delay)
            again.append(e)

    tarry.resume(tmp_path / "b", task=task(), delay=delay, callbacks=[resumed])
    assert len(again) == 1
    assert tarry.verify(tmp_path / "b").ok


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"objects": 3}'])
def test_a_meta_file_that_cannot_be_read_is_named(tmp_path, text):
    broken(tmp_path / "r", 20, method="fedasync")
    (tmp_path / "r" / "meta.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"meta\.json cannot be read"):
        tarry.resume(tmp_path / "r", task=task(), delay=delay)
