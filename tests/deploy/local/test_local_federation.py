"""What a federation on one machine is made of: processes, certificates, settings."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tarry
from tarry.core.errors import BadInput
from tarry.core.tickets import LocalResult
from tarry.deploy.client import worker as worker_module
from tarry.deploy.client.client_store import ClientStore
from tarry.deploy.client.worker import Worker
from tarry.deploy.client_app import _worker
from tarry.deploy.config import read_config
from tarry.deploy.local.local_federation import LocalFederation
from tarry.deploy.local.log_rotation import rotate_logs
from tarry.deploy.local.processes import Processes, began, free_ports
from tarry.deploy.local.submit import Submission
from tarry.deploy.local.tls import authority, node_key
from tarry.deploy.private_data import plan_with_own_data, plan_without_data
from tarry.deploy.server.open_tickets import max_tickets_per_client
from tarry.deploy.wire import ReplyMessage
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, npy, small_plan
from tests.helpers.processes import wait_until
from tests.helpers.served import served

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_only_what_was_started_is_ended(tmp_path):
    ours = Processes(tmp_path, {})
    other = subprocess.Popen(SLEEPER)
    try:
        mine = ours.start("mine", SLEEPER)
        assert ours.alive("mine")
        assert Processes(tmp_path, {}).alive("mine"), "whoever comes later knows it too"
        assert ours.end(["mine"]) == ["mine"]
        assert began(mine.pid) is None
        assert other.poll() is None
        assert ours.names() == []
    finally:
        other.kill()
        other.wait()


def test_a_process_id_that_is_somebody_elses_by_now_is_left_alone(tmp_path):
    other = subprocess.Popen(SLEEPER, start_new_session=True)
    try:
        ours = Processes(tmp_path, {})
        (tmp_path / "processes.json").write_text(
            f'[{{"name": "mine", "pid": {other.pid}, "began": "another boot:1", "command": []}}]'
        )
        ours = Processes(tmp_path, {})
        assert not ours.alive("mine")
        assert ours.end(["mine"], within=0.2) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_children_go_with_their_parent(tmp_path):
    ours = Processes(tmp_path, {})
    code = "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); time.sleep(600)"
    ours.start("parent", [sys.executable, "-c", code, *SLEEPER])
    log = tmp_path / "logs" / "parent.log"
    wait_until(lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    ours.end(["parent"])
    wait_until(lambda: began(child) is None)


def test_ports_are_free_and_differ():
    assert len(set(free_ports(5))) == 5


def test_certificates_are_good_for_this_machine_alone(tmp_path):
    authority(tmp_path)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    assert _handshake(context, server, "localhost")
    assert _handshake(context, server, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(context, server, "example.org")
    private, public = node_key(tmp_path, 0)
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    assert private.stat().st_mode & 0o077 == 0
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0


def test_a_certificate_holds_for_the_names_under_which_others_reach_the_server(tmp_path):
    authority(tmp_path, ["fl.example.org", "192.0.2.7"])
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    for name in ("fl.example.org", "192.0.2.7", "localhost"):
        assert _handshake(context, server, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(context, server, "192.0.2.8")


def test_process_logs_have_a_bounded_size_while_their_process_writes_on(tmp_path):
    ours = Processes(tmp_path, {})
    code = "import time\nwhile True: print('x' * 99, flush=True); time.sleep(0.0001)"
    try:
        ours.start("talker", [sys.executable, "-c", code])
        log = tmp_path / "logs" / "talker.log"
        for _ in range(3):
            wait_until(lambda: log.stat().st_size > 20_000)
            rotate_logs(tmp_path / "logs", limit=10_000)
            assert log.stat().st_size < 20_000, "it is written from its beginning"
            assert (tmp_path / "logs" / "talker.log.1").stat().st_size > 10_000
        assert {p.name for p in (tmp_path / "logs").iterdir()} == {"talker.log", "talker.log.1"}
    finally:
        ours.end(["talker"])


def _handshake(client, server, name):
    """TLS without a socket."""
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    us, them = client.wrap_bio(a, b, server_hostname=name), server.wrap_bio(b, a, server_side=True)
    for _ in range(6):
        done = 0
        for side in (us, them):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
        if done == 2:
            return True
    return False


def test_a_run_config_says_what_a_run_is(tmp_path):
    s = read_config({"method.name": "fedbuff", "method.buffer": 3, "task": "digits:hidden=8", "clients": 3,
              "deadline": 60, "in-flight": 1, "eval-every": 2.5, "updates": 9})  # fmt: skip
    assert s.spec.label == "fedbuff:buffer=3"
    assert (s.spec.clients, s.spec.eval_every, s.spec.updates) == (3, 2.5, 9)
    assert (s.options.deadline, s.options.in_flight) == (60.0, 1)
    assert not s.sleeps
    assert read_config({"method": "fedbuff", "method.buffer": 3}).spec.label == "fedbuff:buffer=3"
    assert read_config({"delay": "constant:seconds=3"}).sleeps


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"metod": "fedasync"}, "metod: there is no such setting. Did you mean 'method'"),
        ({"deadline": "soon"}, "deadline = 'soon'"),
        ({"deadline": -1}, "must be above 0"),
        ({"in-flight": 3}, "must be auto, 1 or 2"),
        ({"method": "orthofl", "method.betta": 0.1}, "betta"),
        ({"client": "plain", "known": "x.toml"}, "cannot give its name"),
    ],
)
def test_what_is_wrong_with_a_run_config_is_told(config, why):
    with pytest.raises(BadInput, match=why):
        read_config(config)


def test_a_plain_clients_own_settings_are_left_alone():
    assert read_config({"client": "plain", "local-epochs": 2, "method": "fedasync"}).spec.label == "fedasync"


def test_settings_reach_the_app_as_they_were_given(tmp_path):
    local = LocalFederation(tmp_path / "fed")
    given = {"method.name": "orthofl", "method.beta": 0.4, "task": "digits", "clients": 2, "updates": 5, "lr": 0.1}
    local.prepare(2, given, tls=False)
    config = tomllib.loads((tmp_path / "fed/flower/app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    s = read_config(config)
    assert s.spec.label == "orthofl:beta=0.4"
    assert s.options.out == str(tmp_path / "fed")
    assert len(set(local.setup.ports)) == 3
    with pytest.raises(BadInput, match="no federation was set up"):
        assert LocalFederation(tmp_path / "none").setup


def test_a_plain_federation_runs_on_the_same_driver(tmp_path):
    """Clients that add one to every weight, known by their nodes alone."""
    setting = read_config({"client": "plain", "method": "fedasync:alpha=1,a=0", "task": "digits:hidden=8,limit=200",
                    "clients": 3, "updates": 5, "out": str(tmp_path / "out")})  # fmt: skip

    class Adder(FakeGrid):
        def push(self, requests):
            ids = []
            for x in requests:
                assert x.kind == "train"
                arrays = {k: npy(v + 1) for k, v in x.arrays.items()}
                id_ = f"{len(self._due)}"
                self._due[id_] = (self.clock() + 1.0, x, ReplyMessage(id_, x.node, {"num-examples": 3}, arrays))
                ids.append(id_)
            return ids

    grid = Adder(Clock(), {7: None, 8: None})
    assert served(grid, setting) == "updates"
    rows = (tmp_path / "out" / "journal.jsonl").read_text()
    assert '"name":"node 7"' in rows
    assert tarry.record.result.Result.read(tmp_path / "out").updates == 5


def test_a_federation_with_other_settings_is_not_taken_up(tmp_path):
    made = small_plan(method="fedasync")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    out = {"out": str(tmp_path / "out"), "task": "digits:limit=200,hidden=8", "clients": 4, "epochs": 1, "updates": 3}
    assert served(grid, read_config({"method": "fedasync", **out})) == "updates"
    with pytest.raises(BadInput, match="is over"):
        served(grid, read_config({"method": "fedasync", **out}))
    (tmp_path / "out" / "result.json").unlink()
    with pytest.raises(BadInput, match="other settings"):
        served(grid, read_config({"method": "fedbuff", **out}))


def test_a_federation_that_is_not_over_is_reported(tmp_path, cli):
    made = small_plan(method="fedasync")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    config = {"method": "fedasync", "task": "digits:limit=200,hidden=8", "clients": 4, "epochs": 1, "updates": 400}
    out = tmp_path / "out"

    def stop_soon(seconds, plain=grid.clock.sleep):
        plain(seconds)
        if (out / "journal.jsonl").read_text().count('"op":"update"') > 5:
            (out / "stop").touch()

    grid.clock.sleep = stop_soon
    assert served(grid, read_config({**config, "out": str(out)})) == "stopped"
    assert not (out / "result.json").exists()
    code, said = cli("report", out)
    assert code == 0
    assert "not over yet" in said


def test_each_client_may_hold_its_own_examples(tmp_path):
    config = {"data": "own", "method": "orthofl", "task": "digits:limit=200,hidden=8", "clients": 3, "epochs": 1}
    server, client = plan_without_data(read_config(config)), plan_with_own_data(read_config(config))
    assert len(client.task.clients) == 3
    assert len(client.task.clients[2][0]) == len(server.task.clients[0][0])
    worker = Worker(client.bound(), client.method.local, client.work, 0, ClientStore(tmp_path))
    words = {"federation": "ab", "number": 0, "token": "t", "client": 2, "visit": 0, "version": 0, "time": 0.0}
    told, arrays = worker.train({**words, "kept": -1}, {"weights": server.server().weights.numpy()})
    assert told["num-examples"] == len(server.task.clients[0][0])
    assert arrays["delta"].shape == (server.layout.size,)
    with pytest.raises(BadInput, match="how many"):
        plan_without_data(read_config({"data": "own", "task": "digits"}))


def test_a_machine_says_what_it_trains_on(tmp_path):
    context = SimpleNamespace(
        node_config={"device": "tpu", "home": str(tmp_path), "partition-id": 0}, run_config={"task": "digits"}
    )
    with pytest.raises(BadInput, match="--device tpu: there is no such device here"):
        _worker(context)
    context.node_config["device"] = "cpu"
    assert _worker(context).bound.flat.device == torch.device("cpu")


def test_what_comes_is_put_where_it_is_trained(tmp_path, monkeypatch):
    seen = []

    def look(job, bound, **_):
        seen.extend([job.sent, *job.payload.values(), *job.memory.values()])
        made = torch.ones(2)
        return LocalResult(made, 5, 1, 0.5, True, {"more": made}, {"own": made}, {})

    monkeypatch.setattr(worker_module, "train", look)
    elsewhere = SimpleNamespace(flat=torch.empty(0, device="meta"))
    home = ClientStore(tmp_path)
    worker = Worker(elsewhere, None, None, 0, home)
    words = {"federation": "ab", "number": 0, "token": "t", "client": 2, "version": 0, "time": 0.0}
    given = {"weights": np.zeros(2, np.float32), "payload.c": np.ones(2, np.float32)}
    worker.train({**words, "visit": 0, "kept": -1}, given)
    assert [t.device.type for t in seen] == ["meta"] * 2
    told, arrays = worker.train({**words, "visit": 1, "kept": 0}, given)
    assert [t.device.type for t in seen[2:]] == ["meta"] * 3, "what the visit before left, too"
    assert not told["memory-lost"]
    assert all(isinstance(a, np.ndarray) for a in arrays.values())


def test_the_driver_of_a_plan_holds_two_tickets_where_it_may(tmp_path):
    made = small_plan(method="fedbuff")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    assert d.engine.max_tickets == max_tickets_per_client(made.method) == 2
    finished(d, grid)
    assert os.path.exists(tmp_path / "out" / "journal.jsonl")


def test_a_node_ends_when_one_of_its_threads_fails():
    """Flower's heartbeats come from a thread; a node without them is never used again, and does not say so."""
    code = "import threading, time; from tarry.deploy import node; threading.excepthook = node._end_with_thread; "
    code += "threading.Thread(target=lambda: 1 / 0).start(); time.sleep(600)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


RUNS = '{"success": true, "runs": [{"run-id": "7", "status": "STATUS", "created-at": "now", "finished-at": "N/A"}]}'


@pytest.mark.parametrize(("status", "serves"), [("pending", True), ("running", True), ("finished:failed", False)])
def test_an_app_that_begins_slowly_is_not_submitted_again(status, serves, tmp_path, monkeypatch):
    monkeypatch.setattr(Submission, "flwr", lambda *_: RUNS.replace("STATUS", status))
    (tmp_path / "run.json").write_text('{"run": "7", "at": 0.0}')
    assert Submission(tmp_path, tmp_path, "here").serving() == serves


def test_an_app_of_an_earlier_submission_that_works_is_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(Submission, "flwr", lambda *_: RUNS.replace("STATUS", "finished:failed"))
    (tmp_path / "run.json").write_text('{"run": "7", "at": 0.0}')
    ours = {"pid": os.getpid(), "began": began(os.getpid()), "run": "6"}
    (tmp_path / "server.json").write_text(json.dumps(ours))
    assert Submission(tmp_path, tmp_path, "here").serving()
    (tmp_path / "server.json").write_text(json.dumps({**ours, "began": "another boot:1"}))
    assert not Submission(tmp_path, tmp_path, "here").serving()
