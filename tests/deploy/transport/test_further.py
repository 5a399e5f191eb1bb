"""A further link: it is connected when a run waits there, ends with it, and is connected again."""

from __future__ import annotations

import re
import threading

import pytest

from tarry.core.errors import BadInput
from tarry.deploy.config import read_config
from tarry.deploy.local.submit import settings_of_links
from tarry.deploy.transport.background import BackgroundGrid, TransportLimits
from tarry.deploy.transport.connect import connect
from tarry.deploy.transport.flower_link import Address
from tarry.deploy.transport.further import FurtherLink
from tarry.deploy.wire import RunEnded, Unreachable
from tests.helpers.fake_link import FakeLink
from tests.helpers.processes import wait_until


class FakeRun:
    def __init__(self, number: int):
        self.address = Address("127.0.0.1:1", "token", number)
        self.ended = False
        self.lost = False

    def send_heartbeat(self) -> None:
        if self.lost:
            raise RunEnded("Flower has ended the run")

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def further(monkeypatch):
    """A further link whose runs wait in a list."""
    monkeypatch.setattr("tarry.deploy.transport.further._RETRY", 0.01)
    links: dict[int, FakeLink] = {}

    class Parts:
        waiting: list[FakeRun] = []
        down = False

        def take(self):
            if self.down:
                raise Unreachable("connection rejected")
            return self.waiting.pop(0) if self.waiting else None

    parts, news = Parts(), threading.Event()
    parts.waiting = []

    def to_run(address: Address) -> BackgroundGrid:
        links[address.run_id] = FakeLink(run=str(address.run_id), present={5: ""})
        return BackgroundGrid(links[address.run_id], TransportLimits(look_every=0.005, nodes_every=0.01), news=news)

    grid = FurtherLink("127.0.0.1:1", parts.take, to_run, news)
    yield parts, grid, links
    grid.close()


def test_without_a_run_it_has_no_nodes_and_takes_no_requests(further):
    parts, grid, _ = further
    parts.down = True
    assert (grid.run, grid.nodes(), grid.pull(["a"]), grid.has_room(5)) == ("", {}, [], False)
    assert grid.links_without_run() == [0]


def test_a_run_that_is_lost_is_followed_by_the_next(further):
    parts, grid, links = further
    first, second = FakeRun(7), FakeRun(8)
    parts.waiting.append(first)
    wait_until(lambda: grid.nodes() == {5: ""})
    assert (grid.run, grid.run_of(5), grid.links_without_run()) == ("7", "7", [])
    links[7].ended = True
    wait_until(lambda: grid.nodes() == {} and grid.links_without_run() == [0])
    parts.waiting.append(second)
    wait_until(lambda: grid.nodes() == {5: ""})
    assert grid.run == "8"
    assert first.ended
    grid.close()
    assert second.ended


def test_addresses_are_checked():
    with pytest.raises(BadInput, match="links: 'somewhere' is no address; it must be HOST:PORT"):
        read_config({"method": "fedasync", "task": "digits", "links": "a:1, somewhere"})
    setting = read_config({"method": "fedasync", "task": "digits", "links": "a:1, b:2"})
    assert setting.options.link_addresses == ["a:1", "b:2"]


def test_links_are_named_as_in_the_configuration_of_flower(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(
        '[superlink.b]\naddress = "b:1"\nroot-certificates = "/ca"\n[superlink.c]\naddress = "c:1"\ninsecure = true\n'
    )
    assert settings_of_links([]) == {}
    assert settings_of_links(["b"]) == {"links": "b:1", "links-root-certificates": "/ca"}
    assert settings_of_links(["c"]) == {"links": "c:1"}
    with pytest.raises(BadInput, match=re.escape("no [superlink.d]")):
        settings_of_links(["d"])
    with pytest.raises(BadInput, match="same root-certificates"):
        settings_of_links(["b", "c"])


def test_several_links_need_the_grid_of_a_superlink():
    with pytest.raises(BadInput, match="several SuperLinks need"):
        connect(object(), "1", 1000, further=["a:1"])
