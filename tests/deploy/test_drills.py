"""Drills: processes that are stopped, cut off, slow, flooded, out of disk, late or upgraded. Each record is replayed.

Kills are in test_failures.py. `make test-federation` runs both.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tarry
from tarry.deploy import node
from tarry.deploy.local.local_federation import LocalFederation
from tarry.deploy.local.processes import free_ports
from tarry.record.backup import back_up
from tests.helpers.federations import (
    SMALL,
    honest,
    over,
    pid_of,
    reach,
    server_pid,
    update_rows,
    updates,
    updates_by_client,
)
from tests.helpers.processes import wait_until
from tests.helpers.proxy import Proxy

pytestmark = pytest.mark.federation
#: visits of a second or more, so that a federation lasts as long as its drill
PACED = {**SMALL, "method": "orthofl", "delay.name": "constant", "delay.seconds": 1.0, "deadline": 60.0}


def start_node(local: LocalFederation, number: int, link: int) -> None:
    """Start a further node, with a fork server of its own, that reaches the SuperLink at a port of the loopback."""
    home, (port,) = local.flower_dir / "nodes" / str(number), free_ports(1)
    home.mkdir(parents=True, exist_ok=True)
    local.processes.start(
        f"node-{number}",
        [sys.executable, str(node.__file__), "--insecure", "--superlink", f"127.0.0.1:{link}", "--isolation", "process",
         "--host", "127.0.0.1", "--port", str(port), "--node-config", f'partition-id={number} home="{home}"'],
    )  # fmt: skip
    local.processes.start(
        f"warm-{number}",
        [sys.executable, "-m", "tarry.deploy.fork_server", "--runtime-api-address", f"127.0.0.1:{port}"],
    )


@pytest.fixture
def proxied(local) -> Iterator[tuple[LocalFederation, Proxy]]:
    """A federation of three clients, the third behind a proxy."""
    local.prepare(2, {**PACED, "clients": 3, "updates": 60}, tls=False)
    local.up()
    proxy = Proxy(local.setup.ports[0])
    start_node(local, 2, proxy.port)
    yield local, proxy
    proxy.close()


@pytest.mark.parametrize("victim", ["node-1", "app", "link"])
def test_a_process_that_stands_still_and_continues_costs_no_update(local, victim):
    local.prepare(2, {**PACED, "clients": 2, "updates": 24}, tls=True)
    local.up()
    reach(local, 4)
    pid = pid_of(local, victim)
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(12.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    honest(local, over(local))


def test_a_client_whose_network_is_cut_returns_and_the_others_continue_meanwhile(proxied):
    local, proxy = proxied
    wait_until(lambda: updates_by_client(local)[2] >= 2)
    proxy.cut()
    before = updates(local)
    reach(local, before + 8)
    during = updates_by_client(local)[2]
    proxy.restore()
    wait_until(lambda: updates_by_client(local)[2] >= during + 2 or (local.folder / "result.json").is_file())
    result = over(local)
    assert updates_by_client(local)[2] >= during + 2, "it is back"
    honest(local, result)


def test_a_slow_upload_is_accepted_and_the_others_continue(proxied):
    local, proxy = proxied
    wait_until(lambda: updates_by_client(local)[2] >= 1)
    proxy.upload_rate = 1500.0  # a model has 5 kB
    before = updates_by_client(local)
    result = over(local)
    after = updates_by_client(local)
    assert after[2] > before[2]
    assert min(after[c] - before[c] for c in (0, 1)) > after[2] - before[2]
    honest(local, result)


def test_a_flood_of_requests_and_garbage_changes_nothing(local):
    local.prepare(2, {**PACED, "clients": 2, "updates": 24}, tls=False)
    local.up()
    reach(local, 3)
    port, end, sent = local.setup.ports[0], threading.Event(), [0]

    def flood(payload: bytes) -> None:
        while not end.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as s:
                s.sendall(payload)
                sent[0] += 1
                s.recv(200)

    paths = (b"runtime/acquire-task", b"fleet/pull-messages", b"control/start-run", b"nothing")
    requests = [
        b"POST /v1/%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (path, n, b"\xff" * n)
        for path, n in zip(paths, (1 << 20, 3000, 10, 0), strict=True)
    ]
    floods = [threading.Thread(target=flood, args=[p]) for p in [*requests, b"\x16\x03\x01" + os.urandom(4000)]]
    for thread in floods:
        thread.start()
    try:
        reach(local, updates(local) + 10)
    finally:
        end.set()
        for thread in floods:
            thread.join()
    assert sent[0] > 20
    honest(local, over(local))


def test_clients_that_join_late_take_part(local):
    local.prepare(1, {**PACED, "clients": 3, "updates": 50}, tls=False)
    local.up()
    reach(local, 3)
    start_node(local, 1, local.setup.ports[0])
    wait_until(lambda: updates_by_client(local)[1] >= 2)
    start_node(local, 2, local.setup.ports[0])
    result = over(local)
    assert min(updates_by_client(local)[c] for c in range(3)) >= 2
    honest(local, result)


def small_disk(folder: Path, _: Callable[[], int]) -> Iterator[None]:
    """Fill the disk that the record is on, free it, and unmount it."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    yield
    ballast.unlink()
    yield


def limited_size(_: Path, pid: Callable[[], int]) -> Iterator[None]:
    """Let the server app write no file of more than 4 kB, and then any."""
    _, hard = resource.prlimit(pid(), resource.RLIMIT_FSIZE)
    resource.prlimit(pid(), resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.prlimit(pid(), resource.RLIMIT_FSIZE, (hard, hard))
    yield


@pytest.fixture
def mounted(tmp_path) -> Iterator[Path]:
    """A file system of 8 MB for the record; Flower's own files are on another one."""
    folder = tmp_path / "out"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems can be mounted by root only; the limit on file sizes is tried by everyone")
    (tmp_path / "flower").mkdir()
    (folder / "flower").symlink_to(tmp_path / "flower")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_pauses_the_server_until_there_is_space(mounted, local):
    run_out_of_disk(local, small_disk, "No space left on device); free space on this disk")


def test_a_limit_on_file_sizes_pauses_the_server_until_it_is_raised(local):
    run_out_of_disk(local, limited_size, "File too large); raise the limit on file sizes")


def run_out_of_disk(local: LocalFederation, trouble: Callable[..., Iterator[None]], reason: str) -> None:
    """Nothing accepted is lost, the same process continues, and the probe says why it waits."""
    (port,) = free_ports(1)
    local.prepare(2, {**PACED, "clients": 2, "updates": 24, "metrics-port": port}, tls=False)
    local.up()
    reach(local, 5)
    pid = server_pid(local)
    steps = trouble(local.folder, lambda: pid)
    next(steps)
    wait_until(lambda: reason in probe(port)[1])
    assert probe(port)[0] == 503
    before = [r["number"] for r in update_rows(local)]
    if trouble is small_disk:
        wait_until(lambda: reason in " ".join(command("federation", "status", local.folder).split()))
        assert "every update was the federation's to the bit" in command("replay", local.folder)
    next(steps)
    result = over(local)
    assert server_pid(local) == pid, "the server app was not started again"
    assert [r["number"] for r in update_rows(local)][: len(before)] == before
    honest(local, result)


def command(*words: object) -> str:
    """What a command of tarry prints."""
    tool = [sys.executable, "-m", "tarry", *map(str, words)]
    return subprocess.run(tool, capture_output=True, text=True, check=True).stdout


def probe(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@pytest.fixture
def newer(tmp_path) -> Path:
    """Another version of tarry, to be named in PYTHONPATH."""
    source = Path(tarry.__file__).parent
    shutil.copytree(source, tmp_path / "newer" / "tarry", ignore=shutil.ignore_patterns("__pycache__"))
    version = tmp_path / "newer" / "tarry" / "version.py"
    version.write_text(re.sub(r'"\d[^"]*"', '"99.0"', version.read_text()))
    return tmp_path / "newer"


def versions(local: LocalFederation) -> list[str]:
    """The versions of the server app, in the order of its starts."""
    return re.findall(r"tarry ([\d.]+), run", (local.folder / "server.log").read_text())


def test_nodes_and_server_are_upgraded_one_after_the_other_and_rolled_back(local, newer, tmp_path, monkeypatch):
    """The steps of docs/operate.md: nodes, backup, server; then back to the version before, from the backup."""
    local.prepare(2, {**PACED, "clients": 2, "updates": 36}, tls=True)
    local.up()
    reach(local, 4)
    monkeypatch.setenv("PYTHONPATH", str(newer))
    upgraded = LocalFederation(local.folder)
    for name in ("node-0", "node-1"):
        before = updates(local)
        upgraded.processes.end([name, "warm"])
        upgraded.up()
        reach(local, before + 4)
    assert versions(local) == [tarry.__version__]
    assert back_up(local.folder, tmp_path / "backup") > 4
    saved = updates(local)

    upgraded.down(within=60.0)
    upgraded.up()
    reach(local, saved + 4)
    assert versions(local)[-1] == "99.0"
    upgraded.down(within=60.0)
    log = versions(local)

    for path in local.folder.iterdir():
        if path.name != "flower":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "backup", local.folder, dirs_exist_ok=True)
    monkeypatch.delenv("PYTHONPATH")
    restored = LocalFederation(local.folder)
    assert updates(restored) <= saved
    restored.up()
    result = over(restored)
    assert log[-1] == "99.0" != versions(restored)[-1] == tarry.__version__
    honest(restored, result)
