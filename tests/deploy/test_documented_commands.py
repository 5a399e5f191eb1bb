"""The commands of docs/deploy.md, one after the other, as people type them: certificates, node keys, known clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tarry.deploy.local.processes import free_ports
from tarry.deploy.local.tls import authority, node_key
from tarry.record.result import Result
from tarry.record.rows import read_rows
from tarry.runs.replay import replay
from tests.helpers.processes import PATIENCE, wait_until

pytestmark = pytest.mark.federation
BIN = Path(sys.executable).parent


class Machine:
    """A folder, Flower's home in it, and processes that are ended with it."""

    def __init__(self, folder: Path):
        self.folder, self.started = folder, list[subprocess.Popen[bytes]]()
        home = folder / "flwr"
        home.mkdir()
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        self.env = {**os.environ, **quiet, "FLWR_HOME": str(home), "PATH": path}

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(self.started)}.log").open("wb") as log:
            self.started.append(
                subprocess.Popen([str(w) for w in words], env=self.env, stdout=log, stderr=log, start_new_session=True)
            )
        return self.started[-1]

    def says(self, *words: object) -> str:
        return subprocess.run(
            [str(w) for w in words], env=self.env, capture_output=True, text=True, check=True, timeout=PATIENCE
        ).stdout.strip()

    def end(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.end()


EXAMPLE = Path(__file__).parents[2] / "examples" / "flower" / "digits" / "pyproject.toml"
CONFIG = """\
out = "federation"
method.name = "orthofl"
task = "digits:limit=400,hidden=16"
clients = 3
updates = 16
epochs = 1
eval-every = 5.0
deadline = 60.0
known = "{known}"
"""


def test_a_server_that_is_kept_and_clients_that_are_known(machine):
    """Three nodes are registered; the third client's own key is not on the list. The app is killed on the way."""
    here, out = machine.folder, machine.folder / "federation"
    authority(here / "tls")
    link, *ports = free_ports(4)
    (here / "flwr" / "config.toml").write_text(
        f'[superlink.here]\naddress = "localhost:{link}"\nroot-certificates = "{here}/tls/ca.crt"\n'
    )
    names = ["st-mary", "st-john", "stranger"]
    keys = {name: machine.says("tarry", "federation", "key", here / name) for name in names}
    (here / "known.toml").write_text("".join(f'{name} = "{keys[name]}"\n' for name in names[:2]))
    (here / "app").mkdir()
    example, header, _ = EXAMPLE.read_text().partition("[tool.flwr.app.config]\n")
    (here / "app" / "pyproject.toml").write_text(example + header + CONFIG.format(known=here / "known.toml"))

    machine.start(
        sys.executable, "-m", "tarry.deploy.link", "--host", "127.0.0.1", "--port", link, "--isolation", "process",
        "--database", here / "link.db", "--ssl-certfile", here / "tls/server.crt",
        "--ssl-keyfile", here / "tls/server.key",
        "--ssl-ca-certfile", here / "tls/ca.crt", "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    )  # fmt: skip
    machine.start(
        "flower-superexec", "--runtime-api-address", f"localhost:{link}", "--root-certificates", here / "tls/ca.crt"
    )
    registered = [node_key(here / "tls", i) for i in range(3)]
    wait_until(lambda: _registered(machine, registered[0][1]))
    for address in _other_addresses():
        assert _status(here / "tls" / "ca.crt", link, address, "/v1/control/start-run") == 403
        assert _status(here / "tls" / "ca.crt", link, address, "/v1/fleet/pull-messages") != 403
    for _, public in registered[1:]:
        machine.says("flwr", "supernode", "register", public, "here")
    for name, port, (private, _) in zip(names, ports, registered, strict=True):
        machine.start(
            sys.executable, "-m", "tarry.deploy.node", "--superlink", f"localhost:{link}", "--root-certificates",
            here / "tls/ca.crt", "--auth-supernode-private-key", private, "--isolation", "process", "--host",
            "127.0.0.1", "--port", port, "--node-config", f"name='{name}' home='{here / name}'",
        )  # fmt: skip
        machine.start(sys.executable, "-m", "tarry.deploy.fork_server", "--runtime-api-address", f"127.0.0.1:{port}")
    keep = machine.start("tarry", "federation", "keep", here / "app", "here", "--out", out)

    wait_until(lambda: _updates(out) >= 5)
    first = json.loads((out / "run.json").read_text())["run"]
    os.kill(json.loads((out / "server.json").read_text())["pid"], signal.SIGKILL)
    assert keep.wait(2 * PATIENCE) == 0, (here / f"{len(machine.started) - 1}.log").read_text()

    assert json.loads((out / "run.json").read_text())["run"] != first
    result = Result.read(out)
    assert result.updates == 16
    clients = {r["name"] for r in read_rows(out / "journal.jsonl") if r["op"] == "client"}
    assert clients == {"st-mary", "st-john"}
    assert "stranger" in (out / "log.jsonl").read_text()
    assert replay(out).weights_sha256 == result.weights_sha256


def _other_addresses() -> list[str]:
    """The address of this machine in its network, if it has one. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return [address for address in [str(probe.getsockname()[0])] if not address.startswith("127.")]
    return []


def _status(ca: Path, port: int, source: str, path: str) -> int:
    """The status of an empty request to the SuperLink that comes from an address of this machine."""
    context = ssl.create_default_context(cafile=str(ca))
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=(source, 0))
    with context.wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        return int(connection.recv(100).split()[1])


def _registered(machine: Machine, public: Path) -> bool:
    try:
        machine.says("flwr", "supernode", "register", public, "here")
    except subprocess.CalledProcessError:
        return False
    return True


def _updates(out: Path) -> int:
    path = out / "journal.jsonl"
    return sum(r["op"] == "update" for r in read_rows(path)) if path.is_file() else 0
