"""The transport on the real wire: a SuperLink, and nodes that upload slowly or not at all."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tarry.deploy.grid import is_packed, numpy_arrays, to_records
from tarry.deploy.local.local_federation import LocalFederation
from tarry.deploy.transport.background import BackgroundGrid, TransportLimits
from tarry.deploy.transport.flower_link import FlowerLink
from tarry.deploy.transport.further import take_run
from tarry.deploy.wire import Request, Unreachable
from tests.helpers.fleet_node import FleetNode
from tests.helpers.processes import wait_until

WEIGHTS = np.arange(600, dtype=np.float32)


class LinkAlone(LocalFederation):
    """A SuperLink on which a run waits for its server app, and nothing else."""

    def _start_node(self, s, i):
        pass

    def _start_exec(self, s):
        pass

    def _warm(self, s):
        pass


@pytest.fixture
def address(tmp_path):
    local = LinkAlone(tmp_path / "out")
    local.prepare(1, {"method": "fedasync", "task": "digits"}, tls=False, memory=True)
    try:
        local.up()
        yield f"127.0.0.1:{local.setup.link_ports[0]}"
    finally:
        local.processes.end(local.processes.names())


def ask(grid, node, *, packed):
    """Send a request with content of its own: a SuperLink stores what is the same once."""
    return grid.push([Request(node, "train", {"number": node}, {"weights": WEIGHTS}, 600.0, is_packed=packed)])[0]


def receive(node):
    found = []

    def has_message():
        message = node.receive()
        found.extend([message] if message is not None else [])
        return message is not None

    wait_until(has_message)
    return found[0]


def test_nodes_that_upload_slowly_or_not_at_all_delay_no_other(address):
    run = take_run(address, None)
    assert run is not None
    assert take_run(address, None) is None, "it is taken once"
    run.send_heartbeat()
    link = FlowerLink(run.address, reply_bytes=1 << 20)
    grid = BackgroundGrid(link, TransportLimits(reply_bytes=1 << 20, fetchers=1))
    nodes = [FleetNode(address) for _ in range(4)]
    stopped, trickling, large, honest = nodes
    try:
        wait_until(lambda: grid.nodes().keys() == {n.id for n in nodes})
        ids = {n: ask(grid, n.id, packed=n is not large) for n in nodes}
        messages = {n: receive(n) for n in nodes}
        for n in nodes:
            np.testing.assert_array_equal(numpy_arrays(messages[n].content)["weights"], WEIGHTS)
            assert is_packed(messages[n].content) == (n is not large)
            arrays = {"delta": WEIGHTS + nodes.index(n), **({"x": np.zeros(1 << 20, np.uint8)} if n is large else {})}
            n.announce(messages[n], to_records({"number": 2}, arrays, is_packed=n is not large))
        assert link.requests_sent()["push object"] == 3 + 3 + 3 + 6, "three objects a packed message"
        large.upload()
        grid.pull(ids.values())
        wait_until(lambda: not grid.holds(ids[stopped]) and not grid.holds(ids[trickling]))
        honest.upload()
        replies = {}

        def came(*wanted):
            replies.update({r.request: r for r in grid.pull(id for id in ids.values() if id not in replies)})
            return all(ids[n] in replies for n in wanted)

        wait_until(lambda: came(honest, large))
        reply = replies[ids[honest]]
        assert (reply.node, reply.fields) == (honest.id, {"number": 2})
        data = np.load(io.BytesIO(reply.arrays["delta"].data))
        np.testing.assert_array_equal(data, WEIGHTS + nodes.index(honest))
        assert replies[ids[large]].error == "a reply of more than 1,048,576 bytes"
        assert not came(stopped)
        assert not came(trickling)
        trickling.upload(1)
        wait_until(lambda: came(trickling))
        assert replies[ids[trickling]].error is None, "the first of its objects has all that matters"
        assert trickling.upload(1) == 1
        assert trickling.upload(1) == 0
    finally:
        grid.close()
        run.end()
        for n in nodes:
            n.close()


def test_a_superlink_that_is_not_there_is_unreachable():
    with pytest.raises(Unreachable):
        take_run("127.0.0.1:1", None)
