"""Commands about federations, where nothing has to be started."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time

import pytest

from tarry.cli.watch import watch
from tarry.core.errors import StorageError
from tarry.deploy.local.local_federation import LocalFederation
from tarry.deploy.local.processes import began
from tarry.deploy.local.submit import Submission
from tarry.deploy.server.result import write
from tarry.record.rows import Log, read_rows
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan
from tests.helpers.processes import wait_until


@pytest.fixture
def record(tmp_path):
    made = small_plan(method="fedasync")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    finished(d, grid)
    return tmp_path / "out"


def test_a_record_is_replayed(cli, record):
    code, said = cli("replay", str(record))
    assert code == 0
    assert "12 updates" in said


def test_a_replay_that_comes_apart_says_where(cli, record):
    rows = list(read_rows(record / "journal.jsonl"))
    first = next(r for r in rows if r["op"] == "update")
    first["digest"] = "0" * 16
    forged = Log(record / "journal.jsonl")
    for row in rows:
        forged.append(row)
    forged.close()
    code, said = cli("replay", str(record))
    assert code == 1
    assert f"ticket {first['number']}, client" in said


def test_a_delay_model_is_made(cli, record):
    code, said = cli("delays", "fit", str(record))
    assert code == 0
    assert "client 3: mean" in said
    assert (record / "delays.csv").read_text().startswith("client,visit,start,seconds,fate")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["replay", "nowhere"], "no federation was recorded here"),
        (["delays", "fit"], "of which federation"),
        (["delays", "normal", "x"], "a folder is for"),
        (["federation", "status", "nowhere"], "no federation has been at work"),
        (["federation", "down", "nowhere"], "no federation was set up here"),
        (["federation", "up", "--out", "x", "--method", "fedasink"], "Did you mean 'fedasync'"),
        (["federation", "up", "--out", "x", "--deadline", "-4"], "must be above 0"),
        (["federation", "up", "--out", "x", "--in-flight", "7"], "must be auto, 1 or 2"),
        (["federation", "up", "--out", "x", "--app", "nowhere"], "there is no Flower app"),
        (["federation", "up", "--out", "x", "--wokers", "3"], "there is no such flag"),
        (["federation", "up", "--out", "x", "--metrics-port", "70000"], "must be from 1 to 65535"),
        (["federation", "up", "--out", "x", "--log-format", "xml"], "wants text | json"),
        (["federation", "up", "--out", "x", "--nodes", "-1"], "must be 0 or more"),
        (["federation", "up", "--out", "x", "--track", "mlflw"], "Did you mean 'mlflow'"),
        (["federation", "up", "--out", "x", "--app", "y", "--metrics-port", "1"], "settings are those of"),
        (["federation", "up", "--out", "x", "--links", "65"], "there may be 1 to 64 SuperLinks"),
    ],
)
def test_mistakes_are_told_before_anything_is_started(cli, words, why, tmp_path):
    code, said = cli(*words)
    assert code == 2
    assert why in " ".join(said.split())
    assert not (tmp_path / "x" / "flower").exists()


@pytest.mark.parametrize(
    ("config", "flags", "missing"),
    [("", [], "links"), ('links = ""', ["--tls"], "links-root-certificates")],
)
def test_an_app_without_a_place_for_further_links_is_rejected(config, flags, missing, cli, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text(f"[tool.flwr.app.config]\nclients = 2\n{config}\n")
    code, said = cli("federation", "up", "--out", "x", "--app", "app", "--links", "2", *flags)
    assert code == 2
    assert f"has no {missing} under [tool.flwr.app.config]" in " ".join(said.split())
    assert not (tmp_path / "x").exists()


def test_a_federation_goes_on_with_its_own_settings_alone(cli, tmp_path):
    LocalFederation(tmp_path / "fed").prepare(2, {"method": "fedasync", "clients": 2}, tls=False)
    code, said = cli("federation", "up", "--out", "fed", "--method", "orthofl")
    assert code == 2
    assert "resumes with its own settings" in said


def test_the_key_of_a_client_is_shown(cli, tmp_path):
    _, first = cli("federation", "key", "home")
    _, second = cli("federation", "key", "home")
    assert first == second
    assert len(first.strip()) == 64


def test_delay_models_are_still_listed(cli):
    code, said = cli("delays", "normal")
    assert code == 0
    assert "--delay.mean" in said


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
STATUS = {
    "at": 0.0, "time": 7.74, "ended": "", "pid": 0, "run": "1", "starts": 1, "method": "fedasync", "updates": 9,
    "rounds": 9, "lost": 0, "rejected_updates": 0, "alarms": 0, "paused": 0.0, "quarantined": {}, "accuracy": None,
    "loss": None, "staleness": 0.0, "bytes_up": 0,
    "bytes_down": 0, "nodes": 2, "here": [0, 1], "working": {"0": [0.7]}, "deadlines": {}, "rejected": {},
    "clients": [{"client": 0, "name": "client 0", "updates": 9, "seconds": 9.0, "train_seconds": 1.0, "staleness": 0,
                 "bytes_up": 0, "late": 0, "failed": {}, "rejected": {}}],
}  # fmt: skip
AGAIN = "`tarry federation up --out fed` resumes it"


@pytest.fixture
def sleepers(tmp_path):
    """The folder of a federation whose processes, the server too, do nothing but live."""
    local = LocalFederation(tmp_path / "fed")
    local.prepare(1, {"clients": 1}, tls=False)
    for name in ("link", "exec", "node-0"):
        local.processes.start(name, SLEEPER)
    server = local.processes["exec"]
    told = {"pid": server.pid, "began": server.began, "run": "1"}
    (tmp_path / "fed" / "server.json").write_text(json.dumps(told))
    (tmp_path / "fed" / "run.json").write_text(json.dumps({"run": "1", "at": time.time()}))
    (tmp_path / "fed" / "status.json").write_text(json.dumps({**STATUS, "at": time.time()}))
    (tmp_path / "fed" / "events.jsonl").write_text("")
    yield local
    local.processes.end(local.processes.names())


def kill(local, name):
    pid = local.processes[name].pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: began(pid) is None)


def test_status_tells_of_what_is_there(cli, sleepers):
    code, said = cli("federation", "status", "fed")
    assert code == 0
    assert "fedasync: at work after 7.74 s" in said
    assert "2 nodes, 2 clients here" in said
    assert "gone" not in said


def test_status_names_a_node_whose_process_is_gone(cli, sleepers):
    kill(sleepers, "node-0")
    _, said = cli("federation", "status", "fed")
    assert "fedasync: at work" in said
    assert "node-0's process has ended: `tarry federation up --out fed` starts it again" in said


def test_status_says_that_the_server_is_gone_and_describes_nothing_that_is_not_there(cli, sleepers):
    kill(sleepers, "exec")
    code, said = cli("federation", "status", "fed")
    assert code == 0
    assert "fedasync: cut off after 7.74 s; 9 updates" in said
    assert "the server's process has ended" in said
    assert AGAIN in said
    assert not [w for w in ("at work", "idle", "2 nodes", "clients here") if w in said]
    _, said = cli("federation", "status", "fed", "--json")
    assert json.loads(said)["state"] == "cut off"


@pytest.mark.parametrize("ended", ["", "stopped"])
def test_status_says_that_a_federation_was_taken_down(cli, sleepers, tmp_path, ended):
    (tmp_path / "fed" / "status.json").write_text(json.dumps({**STATUS, "ended": ended, "at": time.time()}))
    sleepers.processes.end(sleepers.processes.names())
    _, said = cli("federation", "status", "fed")
    assert "fedasync: taken down after 7.74 s" in said
    assert AGAIN in said
    assert not [w for w in ("at work", "idle", "2 nodes", "clients here") if w in said]


def test_a_server_that_was_just_submitted_is_about_to_begin(cli, sleepers, tmp_path):
    kill(sleepers, "exec")
    (tmp_path / "fed" / "run.json").write_text(json.dumps({"run": "2", "at": time.time()}))
    _, said = cli("federation", "status", "fed")
    assert "fedasync: about to begin" in said
    (tmp_path / "fed" / "run.json").write_text(json.dumps({"run": "2", "at": time.time() - 60}))
    _, said = cli("federation", "status", "fed")
    assert "the server's process has ended" in said


def test_a_silent_federation_of_another_machine_says_how_it_goes_on(cli, tmp_path):
    (tmp_path / "fed").mkdir()
    (tmp_path / "fed" / "status.json").write_text(json.dumps({**STATUS, "at": time.time() - 48}))
    _, said = cli("federation", "status", "fed")
    assert "fedasync: silent for 48" in said
    assert "`tarry federation keep APP SUPERLINK --out fed` submits it again" in said
    assert "2 nodes" not in said


def test_watch_ends_when_the_server_was_killed_and_nobody_starts_it(cli, sleepers, monkeypatch):
    monkeypatch.setattr(sys.modules[watch.__module__], "_PATIENCE", 0.3)
    kill(sleepers, "exec")
    code, said = cli("watch", "fed", "--every", "0.1")
    assert code == 1
    assert "the server's process has ended" in said
    assert "(watched for 0.3 s more)" in said
    assert said.rstrip().endswith(AGAIN)


def test_watch_ends_when_a_federation_was_taken_down(cli, sleepers):
    sleepers.processes.end(sleepers.processes.names())
    code, said = cli("watch", "fed")
    assert code == 1
    assert f"taken down: {AGAIN}" in said


@pytest.mark.parametrize("killed", ["link", "exec"])
def test_down_waits_for_nothing_where_the_link_or_the_server_is_gone(cli, sleepers, killed):
    kill(sleepers, killed)
    begun = time.monotonic()
    code, said = cli("federation", "down", "fed", "--within", "240")
    assert code == 0
    assert time.monotonic() - begun < 120
    assert "waiting" not in said
    assert "ended: " in said
    assert all(began(p) is None for p in pids(sleepers))


def test_down_says_what_it_waits_for_and_for_how_long(cli, sleepers):
    code, said = cli("federation", "down", "fed", "--within", "0.5")
    assert code == 0
    assert said.startswith("waiting for what is under way to come in, 0.5 s at most\nended: ")
    assert all(began(p) is None for p in pids(sleepers))


def test_down_stops_a_server_that_has_just_begun(cli, sleepers, tmp_path):
    """It takes an old `stop` away at first."""
    code = """if True:
        import pathlib, sys, time
        for _ in range(2):
            while not pathlib.Path(sys.argv[1]).exists():
                time.sleep(0.01)
            pathlib.Path(sys.argv[1]).unlink()
    """
    server = sleepers.processes.start("warm", [sys.executable, "-c", code, str(tmp_path / "fed" / "stop")])
    told = {"pid": server.pid, "began": server.began, "run": "1"}
    (tmp_path / "fed" / "server.json").write_text(json.dumps(told))
    begun = time.monotonic()
    cli("federation", "down", "fed", "--within", "240")
    assert time.monotonic() - begun < 120
    assert not (tmp_path / "fed" / "stop").exists()


def pids(local):
    return [local.processes[name].pid for name in local.processes.names()]


def test_a_federation_that_is_waited_for_tells_the_seconds_of_the_wall_clock(cli, tmp_path, monkeypatch):
    made, fed = small_plan(method="fedasync"), tmp_path / "fed"
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, fed)
    finished(d, grid)
    LocalFederation(fed).prepare(2, {"clients": 2}, tls=False)
    told = [8.9, 8.9, 9.9, 12.3]

    def up(_):
        seconds = told.pop(0)
        (fed / "status.json").write_text(json.dumps({**STATUS, "time": seconds, "accuracy": 0.536}))
        if not told:
            write(d, made, fed)

    monkeypatch.setattr(LocalFederation, "up", up)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    code, said = cli("federation", "up", "--out", "fed", "--wait")
    assert code == 0
    lines = said.splitlines()
    assert lines[:2] == ["9 updates, accuracy 0.536 after 8.9 s", "9 updates, accuracy 0.536 after 12.3 s"]
    assert f"after {d.engine.time:,.6g} s, 12 updates" in lines[2]
    assert "virtual" not in said


@pytest.mark.parametrize(
    ("flags", "encrypted"),
    [
        ([], False),
        (["--host", "localhost"], False),
        (["--host", "::1"], False),
        (["--tls"], True),
        (["--host", "0.0.0.0"], True),
        (["--host", "192.0.2.7"], True),
        (["--host", "fl.example.org"], True),
        (["--host", "0.0.0.0", "--insecure"], False),
    ],
)
def test_a_federation_that_other_machines_reach_is_encrypted_unless_it_is_refused(
    flags, encrypted, cli, tmp_path, monkeypatch
):
    monkeypatch.setattr(LocalFederation, "up", lambda _: None)
    code, said = cli("federation", "up", "--out", "fed", "--clients", "2", "--nodes", "1", *flags)
    assert code == 0
    setup = LocalFederation(tmp_path / "fed").setup
    assert (setup.tls, setup.clients, setup.config["clients"]) == (encrypted, 1, 2)
    assert (tmp_path / "fed" / "flower" / "tls" / "node-0").is_file() == encrypted
    others = not {"--host", "localhost", "::1"} >= set(flags) and "--host" in flags
    assert ("supernode register" in said) == (encrypted and others)
    assert ("anyone who reaches the port can join" in said) == (not encrypted and others)


def test_a_full_disk_is_one_line_for_every_command(cli, sleepers, tmp_path, monkeypatch):
    """Nothing can be written to the folder of the federation."""
    plain, why = os.open, "No space left on device); free space on this disk"

    def full(path, flags, *more, **named):
        if os.path.abspath(path).startswith(str(tmp_path)) and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return plain(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", full)
    status = json.loads((tmp_path / "fed" / "status.json").read_text())
    (tmp_path / "fed" / "status.json").write_text(json.dumps({**status, "at": time.time() - 40}))
    for words in (["up", "--out", "fed"], ["up", "--out", "new"], ["status", "fed"]):
        code, said = cli("federation", *words)
        assert why in said
        assert "Traceback" not in said
        assert code == (0 if words[0] == "status" else 2)
    assert "waiting for its disk" in said
    _, said = cli("federation", "down", "fed", "--within", "9")
    assert why in said
    assert all(began(p) is None for p in pids(sleepers)), "the processes end in any case"
    monkeypatch.undo()


def test_keep_says_once_that_it_waits_for_the_disk_and_then_submits(cli, tmp_path, monkeypatch):
    calls = []

    def submit(_):
        calls.append(1)
        if len(calls) < 4:
            raise StorageError("out/.writable: it cannot be written (No space left on device); free space on this disk")
        raise KeyboardInterrupt

    monkeypatch.setattr(Submission, "submit", submit)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["tarry"])
    _code, said = cli("federation", "keep", "app", "here", "--out", "out")
    assert len(calls) == 4
    assert said.count("No space left on device); free space on this disk; the command waits") == 1
