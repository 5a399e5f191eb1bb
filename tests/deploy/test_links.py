"""Real federations over two SuperLinks, and with nodes that upload badly. They take minutes: run by -m federation."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from tarry.deploy.client.client_store import ClientStore
from tarry.deploy.client.worker import prove_identity
from tarry.deploy.grid import fields_of, numpy_arrays, to_records
from tarry.deploy.local.local_federation import LocalFederation
from tarry.deploy.wire import NODE_BITS
from tarry.record.rows import read_rows
from tarry.runs.replay import Record
from tests.deploy.test_failures import SMALL, honest, over
from tests.helpers.fleet_node import FleetNode
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.federation


def by_client(local: LocalFederation) -> dict[int, int]:
    """Return the number of updates by client."""
    path = local.folder / "journal.jsonl"
    rows = list(read_rows(path)) if path.is_file() else []
    client = {h[0]: h[1] for r in rows if r["op"] == "close" for h in r["handouts"]}
    out = dict.fromkeys(range(4), 0)
    for r in rows:
        if r["op"] == "update":
            out[client[r["number"]]] += 1
    return out


@pytest.mark.parametrize("tls", [False, True])
def test_two_links_of_which_one_dies(tmp_path, tls):
    local = LocalFederation(tmp_path / "out", lambda line: sys.stderr.write(line + "\n"))
    local.prepare(4, {**SMALL, "method": "fedasync", "clients": 4, "updates": 90}, tls=tls, memory=True, links=2)
    try:
        local.up()
        wait_until(lambda: min(by_client(local).values()) >= 1)
        nodes = {
            r["place"]: r["node"] >> NODE_BITS for r in read_rows(local.folder / "journal.jsonl") if r["op"] == "client"
        }
        assert nodes == {0: 0, 1: 1, 2: 0, 3: 1}
        process = local.processes["link-1"]
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        before = by_client(local)
        wait_until(lambda: by_client(local)[0] >= before[0] + 3 and by_client(local)[2] >= before[2] + 3)
        local.up()
        lost = by_client(local)
        wait_until(lambda: by_client(local)[1] > lost[1] + 1 or (local.folder / "result.json").is_file())
        honest(local, over(local, repair=True))
        came = {c for c, _ in Record.read(local.folder).visits}
        assert came == {0, 1, 2, 3}
    finally:
        local.down(within=10.0)


class WithoutTheLast(LocalFederation):
    """A federation whose last node is a stranger's."""

    def _start_node(self, s, i):
        if i < s.clients - 1:
            super()._start_node(s, i)


def upload_badly(address: str, home, how: str, stop: threading.Event) -> None:
    """Take part as client 3 until `stop`: announce each reply, and upload it slowly or never."""
    node, store = FleetNode(address), ClientStore(home)
    while not stop.wait(0.2):
        message = node.receive()
        if message is None:
            continue
        fields = fields_of(message.content)
        if message.metadata.message_type == "query.hello":
            words = prove_identity(store, fields, node=node.id, name="client 3", place=3)
            node.announce(message, to_records(words, {}))
            node.upload()
            continue
        weights = numpy_arrays(message.content)["weights"]
        words = {"number": fields["number"], "token": fields["token"], "num-examples": 1, "num-steps": 1, "loss": 0.0,
                 "train-seconds": 0.1, "keeps-memory": False, "memory-lost": False}  # fmt: skip
        node.announce(message, to_records(words, {"delta": 0 * weights}, is_packed=how == "flooding"))
        if how == "trickling":
            while node.upload(1) and not stop.wait(5.0):
                pass
        elif how == "flooding":
            node.upload()
    node.close()


@pytest.mark.parametrize("how", ["stopped", "trickling", "flooding"])
def test_a_node_that_uploads_badly_delays_no_other(how, tmp_path):
    local = WithoutTheLast(tmp_path / "out", lambda line: sys.stderr.write(line + "\n"))
    local.prepare(4, {**SMALL, "method": "orthofl", "clients": 4, "updates": 40}, tls=False, memory=True)
    stop = threading.Event()
    try:
        local.up()
        address = f"127.0.0.1:{local.setup.link_ports[0]}"
        bad = threading.Thread(target=upload_badly, args=(address, tmp_path / "home", how, stop))
        bad.start()
        try:
            honest(local, over(local))
        finally:
            stop.set()
            bad.join(20)
        counts = by_client(local)
        assert min(counts[c] for c in range(3)) >= 8
        assert sum(counts[c] for c in range(3)) >= 36
    finally:
        local.down(within=10.0)
