"""LocalFederation: SuperLink, SuperNodes and the app on this machine, for trials and tests.

DIR                       the record, as of any run: spec.toml, journal.jsonl, events.jsonl, result.json ...
DIR/flower/setup.json     the settings and the ports
DIR/flower/app            the Flower app: a pyproject.toml that names tarry's server and client, with the run config
DIR/flower/home           Flower's own folder (FLWR_HOME)
DIR/flower/nodes/N        key and memory of client N
DIR/flower/logs           a log a process
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ...core.errors import BadInput, StorageError, TarryError
from ...record.shapes import anything, between, count, fields, flag, list_of, optional, read_record, table_of, text
from ...record.storage import TEXT_LIMIT, check_writable, make_folder, write_atomic
from ..app_code import table_of_app
from ..app_defaults import OUT
from .log_rotation import rotate_logs
from .processes import Processes, free_ports
from .submit import Submission
from .tls import authority, node_key

__all__ = ["LOOPBACK", "LocalFederation", "Setup", "is_loopback"]

_ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1",
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}  # fmt: skip
LOOPBACK = "127.0.0.1"
_ALL_ADDRESSES = ("0.0.0.0", "::")
_DEPLOY = Path(__file__).parents[1]
_NAME = "here"  # of this SuperLink, in Flower's configuration
_APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation"
version = "1.0.0"
description = "A federation on one machine"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "tarry"

[tool.flwr.app.components]
serverapp = "tarry.deploy.server_app:app"
clientapp = "tarry.deploy.client_app:app"

[tool.flwr.app.config]
"""


_SETUP = fields(
    {"clients": count, "tls": flag, "ports": list_of(between(1, 65535)), "config": table_of(anything)},
    {"app": optional(text), "memory": flag, "host": text, "links": between(1, 64)},
    closed=True,
)


@dataclass(frozen=True)
class Setup:
    """The settings that a federation was set up with. `app`: the user's own Flower app instead of tarry's."""

    clients: int
    tls: bool
    ports: list[int]  # of each SuperLink, then of each SuperNode
    config: dict[str, Any]
    app: str | None = None
    memory: bool = False  # the SuperLinks keep their state in memory only
    host: str = LOOPBACK  # the address at which the SuperLinks listen
    links: int = 1  # SuperLinks; node i belongs to link i modulo this

    @property
    def link_ports(self) -> list[int]:
        return self.ports[: self.links]

    @property
    def node_ports(self) -> list[int]:
        return self.ports[self.links :]

    @property
    def addresses(self) -> list[str]:
        """The SuperLinks' addresses for the processes of this machine."""
        if self.host in (LOOPBACK, *_ALL_ADDRESSES):
            host = "localhost" if self.tls else LOOPBACK
        else:
            host = f"[{self.host}]" if ":" in self.host else self.host
        return [f"{host}:{port}" for port in self.link_ports]


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class LocalFederation:
    """The federation in a folder."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _: None):
        self.folder, self.flower_dir, self._say = folder.resolve(), folder.resolve() / "flower", say
        self._tls = self.flower_dir / "tls"
        bin_ = str(Path(sys.executable).parent)
        self._environment = {**_ENVIRONMENT, OUT: str(self.folder), "FLWR_HOME": str(self.flower_dir / "home"),
                             "PATH": bin_ + os.pathsep + os.environ.get("PATH", "")}  # fmt: skip
        self.processes = Processes(self.flower_dir, self._environment)

    @property
    def setup(self) -> Setup:
        path = self.flower_dir / "setup.json"
        if not path.is_file():
            raise BadInput(f"{self.folder}: no federation was set up here; `tarry federation up --out` makes one")
        return Setup(**read_record(path, _SETUP, TEXT_LIMIT))

    @property
    def is_set_up(self) -> bool:
        return (self.flower_dir / "setup.json").is_file()

    @property
    def is_down(self) -> bool:
        """Return whether no process is left that `up` started and `down` has not ended."""
        return not self.processes.names()

    def ended_processes(self) -> list[str]:
        """Return the names of processes that `up` started and that ended without `down`."""
        return [n for n in self.processes.names() if not self.processes.alive(n)]

    def prepare(
        self,
        clients: int,
        config: Mapping[str, Any],
        *,
        tls: bool,
        app: Path | None = None,
        memory: bool = False,
        host: str = LOOPBACK,
        links: int = 1,
    ) -> None:
        """Write all files that the processes need."""
        make_folder(self.flower_dir / "home")
        config = {**config, "out": str(self.folder)}
        own = None if app is None else str(app.resolve())
        setup = Setup(clients, tls, free_ports(links + clients), config, own, memory, host, links)
        if links > 1:
            config["links"] = ",".join(setup.addresses[1:])
            if tls:
                config["links-root-certificates"] = str(self._tls / "ca.crt")
        if app is None:
            make_folder(self.flower_dir / "app")
            lines = [f"{_key(k)} = {_value(v)}" for k, v in config.items()]
            write_atomic(self.flower_dir / "app" / "pyproject.toml", (_APP + "\n".join(lines) + "\n").encode())
        if tls:
            authority(self._tls, [] if is_loopback(host) else _names_of(host))
            for i in range(clients):
                node_key(self._tls, i)
        safe = f'root-certificates = "{self._tls / "ca.crt"}"' if tls else "insecure = true"
        text = f'[superlink]\ndefault = "{_NAME}"\n'
        for i, address in enumerate(setup.addresses):
            text += f'\n[superlink.{_link_name(i)}]\naddress = "{address}"\n{safe}\n'
        write_atomic(self.flower_dir / "home" / "config.toml", text.encode())
        write_atomic(self.flower_dir / "setup.json", json.dumps(vars(setup), indent=1).encode())

    def up(self) -> None:
        """Start the processes that do not run: all of them, or those that were killed."""
        s = self.setup
        check_writable(self.flower_dir)
        rotate_logs(self.flower_dir / "logs")
        fresh = [self._start_link(s, i) for i in range(s.links)]
        self._start_exec(s)
        if s.tls:  # a SuperLink rejects an unregistered node
            self._wait_for_links(s, fresh)
        if s.clients and not self.processes.alive("warm"):
            self._warm(s)
        for i in range(s.clients):
            self._start_node(s, i)
        if not s.tls:
            self._wait_for_links(s, fresh)
        submission = self.submission()
        if not submission.over and not submission.serving():
            self._say(f"run {submission.submit()}")
        elif not submission.over:
            submission.submit_to_links_without_run()

    def _start_link(self, s: Setup, i: int) -> bool:
        """Start a SuperLink; return whether it was not running."""
        safe = ["--insecure"]
        if s.tls:
            safe = ["--ssl-certfile", str(self._tls / "server.crt"), "--ssl-keyfile", str(self._tls / "server.key"),
                    "--ssl-ca-certfile", str(self._tls / "ca.crt"), "--enable-supernode-auth"]  # fmt: skip
        name = _process_name(i)
        if self.processes.alive(name):
            return False
        if s.memory:  # it has lost its nodes, and they do not register twice
            lost = {f"node-{n}" for n in range(i, s.clients, s.links)} | ({"exec"} if i == 0 else set()) | {name}
            self.processes.end([n for n in self.processes.names() if n in lost])
        database = [] if s.memory else ["--database", str(self.flower_dir / f"{name}.db")]
        self.processes.start(
            name,
            [sys.executable, str(_DEPLOY / "link.py"), *safe, "--host", s.host, "--port", str(s.link_ports[i]),
             "--isolation", "process", *database, "--disable-runtime-dependency-installation"],
        )  # fmt: skip
        return True

    def _start_exec(self, s: Setup) -> None:
        """Start what runs the server app; the app takes the runs of further links itself."""
        if not self.processes.alive("exec"):
            trust = ["--root-certificates", str(self._tls / "ca.crt")] if s.tls else ["--insecure"]
            self.processes.start("exec", ["flower-superexec", *trust, "--runtime-api-address", s.addresses[0]])

    def _wait_for_links(self, s: Setup, fresh: list[bool]) -> None:
        """Wait for the SuperLinks that were started, and register the nodes' keys with them."""
        for i in (i for i, is_fresh in enumerate(fresh) if is_fresh):
            self._wait_for(_process_name(i), s.addresses[i])
            self._say(f"SuperLink at {s.host}:{s.link_ports[i]}, {'with TLS' if s.tls else 'not encrypted'}")
            done = self._tls / ("registered" if i == 0 else f"registered-{i}")
            if s.tls and (s.memory or not done.exists()):  # in memory only, a SuperLink has forgotten the keys
                here = range(i, s.clients, s.links)
                for n in here:
                    self.submission().flwr("supernode", "register", str(self._tls / f"node-{n}.pub"), _link_name(i))
                done.touch()
                self._say(f"{len(here)} node keys registered")

    def _start_node(self, s: Setup, i: int) -> None:
        name = f"node-{i}"
        if self.processes.alive(name):
            return
        home = self.flower_dir / "nodes" / str(i)
        make_folder(home)
        address = s.addresses[i % s.links]
        safe = ["--superlink", address, "--insecure"]
        if s.tls:
            safe = ["--superlink", address, "--root-certificates", str(self._tls / "ca.crt"),
                    "--auth-supernode-private-key", str(self._tls / name)]  # fmt: skip
        node_config = f'partition-id={i} num-partitions={s.clients} home="{home}"'
        self.processes.start(
            name,
            [sys.executable, str(_DEPLOY / "node.py"), *safe, "--isolation", "process",
             "--host", LOOPBACK, "--port", str(s.node_ports[i]), "--node-config", node_config],
        )  # fmt: skip
        self._say(f"SuperNode of client {i}")

    def _warm(self, s: Setup) -> None:
        at = [w for p in s.node_ports for w in ("--runtime-api-address", f"{LOOPBACK}:{p}")]
        self.processes.start("warm", [sys.executable, "-m", "tarry.deploy.fork_server", *at])

    def submission(self) -> Submission:
        """The app as it is submitted to the SuperLink of this folder."""
        s = self.setup
        app = self.flower_dir / "app" if s.app is None else Path(s.app)
        config = (table_of_app(app, "config") or {}) if s.app is not None else {}
        override = [f"{k}={_value(v)}" for k, v in s.config.items() if k in config]
        further = [_link_name(i) for i in range(1, s.links)]
        return Submission(self.folder, app, _NAME, override, self._environment, further)

    def _wait_for(self, name: str, address: str) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if not self.processes.alive(name):
                raise TarryError(f"{name} ended at once; see {self.flower_dir / 'logs' / f'{name}.log'}")
            try:
                urllib.request.urlopen(f"http://{address}/", timeout=2)
                return
            except urllib.error.HTTPError:
                return
            except urllib.error.URLError as e:
                if not isinstance(e.reason, ConnectionRefusedError):
                    return
            except OSError:
                return  # it answers, though not over HTTP
            time.sleep(0.1)
        raise TarryError(f"{name} does not answer; see {self.flower_dir / 'logs' / f'{name}.log'}")

    def down(self, *, within: float = 70.0) -> list[str]:
        """End the processes that `up` started and no others; return the names of those that were running."""
        if self.is_set_up and self.processes.alive("link"):  # without it no visit can end
            submission = self.submission()
            if not submission.over and submission.serving():
                self._say(f"waiting for what is under way to come in, {within:g} s at most")
            try:
                submission.stop(within)
            except StorageError as e:
                self._say(f"{e}; the processes end without a wait")
        order = sorted(
            self.processes.names(), key=lambda n: ("warm", "exec", "node", "link").index(n.partition("-")[0])
        )
        links = [name for name in order if name.partition("-")[0] == "link"]
        others = [name for name in order if name not in links]
        # a node signs off at the link; else the link takes it for present and rejects it for a minute when it returns
        return self.processes.end(others, links)

    def clear(self) -> None:
        """Remove the files of Flower; the record stays."""
        shutil.rmtree(self.flower_dir, ignore_errors=True)


def _link_name(i: int) -> str:
    return _NAME if i == 0 else f"{_NAME}-{i}"


def _process_name(i: int) -> str:
    return "link" if i == 0 else f"link-{i}"


def _names_of(host: str) -> list[str]:
    """Return the names and addresses by which other machines may reach this one."""
    name = socket.gethostname()
    addresses = [] if host not in _ALL_ADDRESSES else _addresses(name)
    return [name, *addresses, *([] if host in _ALL_ADDRESSES else [host])]


def _addresses(name: str) -> list[str]:
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def _key(name: str) -> str:
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part) for part in name.split("."))


def _value(x: Any) -> str:
    if isinstance(x, bool):
        return "true" if x else "false"
    return json.dumps(x) if isinstance(x, str) else repr(x)
