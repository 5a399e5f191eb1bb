"""The transport in threads: slow, stopped and flooding uploaders, a link that hangs, order, bounds."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tarry.deploy.transport.background import UNSENT, BackgroundGrid, TransportLimits
from tarry.deploy.transport.link import Announcement
from tarry.deploy.wire import ReplyMessage, Request, RunEnded
from tarry.runs.replay import replay
from tests.helpers.fake_grid import FakeGrid, driver, nodes, small_plan
from tests.helpers.fake_link import FakeLink
from tests.helpers.processes import wait_until

FAST = {"look_every": 0.005, "nodes_every": 0.01}


@pytest.fixture
def link():
    return FakeLink()


@pytest.fixture
def make(link):
    made = []

    def make(**limits) -> BackgroundGrid:
        made.append(BackgroundGrid(link, TransportLimits(**{**FAST, **limits})))
        return made[-1]

    yield make
    link.open.set()
    for grid in made:
        grid.close()


def request(node: int, size: int = 1) -> Request:
    return Request(node, "train", {}, {"weights": np.zeros(size, np.uint8)}, 60.0)


def collect(grid: BackgroundGrid, ids: list[str], count: int) -> list[ReplyMessage]:
    """Pull until so many replies are in."""
    found: list[ReplyMessage] = []

    def enough() -> bool:
        left = [id for id in ids if id not in {r.request for r in found}]
        found.extend(grid.pull(left))
        return len(found) >= count

    wait_until(enough)
    return found


def content(reply: ReplyMessage) -> bytes:
    return reply.arrays["x"].data


def test_a_request_is_sent_and_its_reply_fetched(link, make):
    grid = make()
    (id,) = grid.push([request(7)])
    wait_until(lambda: len(link.sent) == 1)
    link.reply(id, 7, b"a", b"b")
    (reply,) = collect(grid, [id], 1)
    assert (reply.node, content(reply), reply.error) == (7, b"ab", None)
    assert link.decoded == [id]
    wait_until(lambda: link.discarded == [id])
    assert grid.pull([id]) == [], "a reply is returned once"


def test_the_requests_of_a_node_stay_in_order(link, make):
    grid = make(senders=4, waiting_requests=1000)
    ids = [grid.push([request(node)])[0] for _ in range(40) for node in (1, 2, 3, 4, 5)]
    wait_until(lambda: len(link.sent) == len(ids))
    for node in (1, 2, 3, 4, 5):
        sent = [r.id for r in link.sent if r.node == node]
        assert sent == [id for i, id in enumerate(ids) if i % 5 == node - 1]


@pytest.mark.parametrize("slow", ["stopped", "trickling"])
def test_slow_uploaders_do_not_delay_the_others(slow, link, make):
    """There are more slow uploaders than fetchers, and all begin first."""
    grid = make(fetchers=2)
    ids = [grid.push([request(n)])[0] for n in range(12)]
    wait_until(lambda: len(link.sent) == 12)
    for n, id in enumerate(ids[:8]):
        link.reply(id, n, *([b"part", None] if slow == "trickling" else [None, None]))
    assert grid.pull(ids) == []
    wait_until(lambda: len(link.fetched) >= 8)
    for n, id in enumerate(ids[8:]):
        link.reply(id, 8 + n, b"whole")
    replies = collect(grid, ids, 4)
    assert {r.request for r in replies} == set(ids[8:])
    for id in ids[:8]:
        assert not grid.holds(id), "these wait for their sender, and may be given up"
        link.upload(id, 0, b"part")
        link.upload(id, 1, b"ial")
    rest = collect(grid, ids[:8], 8)
    assert {content(r) for r in rest} == {b"partial"}


def test_an_incomplete_reply_is_looked_at_less_and_less_often(link, make):
    grid = make()
    (id,) = grid.push([request(1)])
    wait_until(lambda: len(link.sent) == 1)
    link.reply(id, 1, None)
    grid.pull([id])
    wait_until(lambda: len(link.fetched) >= 4)
    fetch = grid._announced[id]
    assert fetch.delay >= 8 * 0.05


def test_a_reply_that_is_lost_on_the_link_is_an_error(link, make):
    grid = make()
    (id,) = grid.push([request(1)])
    wait_until(lambda: len(link.sent) == 1)
    link.lost.add(f"{id}:0")
    link.reply(id, 1, None)
    (reply,) = collect(grid, [id], 1)
    assert reply.error == "the message was gone"


def test_a_reply_that_is_too_large_is_rejected_and_removed(link, make):
    grid = make(reply_bytes=10)
    (id,) = grid.push([request(1)])
    wait_until(lambda: len(link.sent) == 1)
    link.reply(id, 1, b"x" * 8, b"y" * 8, b"z" * 8)
    (reply,) = collect(grid, [id], 1)
    assert reply.error == "a reply of more than 10 bytes"
    wait_until(lambda: link.discarded == [id])
    assert f"{id}:2" not in link.fetched, "the rest is not fetched"


def test_replies_in_memory_are_bounded(link, make):
    """A flood: many large replies at once, and a driver that does not take them."""
    grid = make(reply_bytes=100, waiting_bytes=300, fetchers=4)
    ids = [grid.push([request(n)])[0] for n in range(20)]
    wait_until(lambda: len(link.sent) == 20)
    for n, id in enumerate(ids):
        link.reply(id, n, b"x" * 100)
    grid.pull(ids)
    wait_until(lambda: len(grid._announced) == 17)
    assert not threading.Event().wait(0.1)
    assert grid._ready_bytes == 300
    assert len(link.decoded) == 3
    others = [id for id in ids if id not in link.decoded]
    assert all(grid.holds(id) for id in others), "they wait for this server: no deadline may end them"
    assert len(collect(grid, ids, 20)) == 20


def test_replies_come_a_few_at_a_time_and_the_rest_is_held(link, make):
    grid = make(replies_at_a_time=2)
    ids = [grid.push([request(n)])[0] for n in range(5)]
    wait_until(lambda: len(link.sent) == 5)
    for n, id in enumerate(ids):
        link.reply(id, n, b"x")
    grid._wanted = frozenset(ids)
    wait_until(lambda: len(grid._ready) == 5)
    first = {r.request for r in grid.pull(ids)}
    assert len(first) == 2
    rest = [id for id in ids if id not in first]
    assert all(grid.holds(id) for id in rest), "no deadline may end what is here"
    grid.wait(60.0)
    assert len(grid.pull(rest)) == 2
    assert len(grid.pull(rest)) == 1


def test_requests_in_memory_are_bounded(link, make):
    grid = make(waiting_requests=3, waiting_bytes=1000)
    link.open.clear()
    for n in range(3):
        assert grid.has_room(n)
        grid.push([request(n)])
    assert not grid.has_room(9)
    link.open.set()
    grid.wait(10.0)
    wait_until(lambda: grid.has_room(9))
    link.open.clear()
    grid.push([request(4, 1000)])
    assert not grid.has_room(9), "one large request fills the memory"


def test_a_request_that_the_link_rejects_gets_an_error(link, make):
    grid = make()
    link.refused.add(1)
    ids = [grid.push([request(n)])[0] for n in (1, 2)]
    (reply,) = collect(grid, ids, 1)
    assert (reply.request, reply.error) == (ids[0], UNSENT)


def test_a_link_that_is_down_is_tried_again_and_nothing_is_lost(link, make):
    grid = make()
    link.down = True
    (id,) = grid.push([request(1)])
    wait_until(lambda: len(link.began_to_send) >= 1)
    assert grid.holds(id)
    link.down = False
    wait_until(lambda: len(link.sent) == 1)
    link.reply(id, 1, b"x")
    assert content(collect(grid, [id], 1)[0]) == b"x"


def test_a_stall_of_the_link_is_counted(link):
    now = [0.0]
    link.open.clear()
    grid = BackgroundGrid(link, TransportLimits(**FAST), clock=lambda: now[0])
    try:
        assert grid.stalls() == {"1": 0.0}
        now[0] = 30.0
        assert grid.stalls() == {"1": 30.0}
        link.open.set()
        wait_until(lambda: grid._answered == 30.0)
        assert grid.stalls() == {"1": 30.0}
        now[0] = 32.0
        assert grid.stalls() == {"1": 30.0}, "two seconds are no stall"
    finally:
        grid.close()


def test_a_slow_link_gives_visits_more_time(link):
    now = [0.0]
    link.open.clear()
    grid = BackgroundGrid(link, TransportLimits(**FAST), clock=lambda: now[0])
    try:
        assert grid.delay(1) == 0.0
        now[0] = 2.0
        link.open.set()
        wait_until(lambda: grid.delay(1) > 0.0)
        assert grid.delay(1) <= 120.0
        wait_until(lambda: grid.delay(1) < 10.0)
    finally:
        grid.close()


def test_the_end_of_the_run_reaches_the_driver(link, make):
    grid = make()
    link.ended = True
    wait_until(lambda: grid._run_ended is not None)
    with pytest.raises(RunEnded):
        grid.pull([])


def test_a_wait_ends_when_a_reply_is_in(link, make):
    grid = make()
    (id,) = grid.push([request(1)])
    grid.pull([id])
    wait_until(lambda: len(link.sent) == 1)
    threading.Timer(0.05, lambda: link.reply(id, 1, b"x")).start()
    while not (replies := grid.pull([id])):
        grid.wait(60.0)
    assert content(replies[0]) == b"x"


def test_what_is_not_fetched_may_arrive_after_the_reply(link, make):
    grid = make(discard_after=0.3)
    (id,) = grid.push([request(1)])
    wait_until(lambda: len(link.sent) == 1)
    link.objects["whole"] = b"x"
    link.replies[id] = Announcement(id, 1, "reply", ("whole",), has_others=True)
    assert content(collect(grid, [id], 1)[0]) == b"x"
    assert link.discarded == []
    wait_until(lambda: link.discarded == [id])


class LinkOfNodes(FakeLink):
    """A link to the nodes of a FakeGrid, which answer at once unless they are listed as slow."""

    def __init__(self, inner: FakeGrid, slow: set[int]):
        super().__init__()
        self.inner, self.slow = inner, slow
        self.present = dict.fromkeys(inner.there, "")

    def send(self, request):
        super().send(request)
        node = self.inner.there[request.node]
        reply = node.answer(request.message, request.id)
        with self.lock:
            self._answers[request.id] = reply
        if request.message.kind == "train" and request.node in self.slow:
            self.reply(request.id, request.node, b"x", None)
        else:
            self.reply(request.id, request.node, b"x")
        return True

    def __post_init__(self):
        super().__post_init__()
        self._answers: dict[str, ReplyMessage] = {}

    def decode(self, reply, contents):
        return self._answers.pop(reply.request)


def test_a_federation_goes_on_with_slow_uploaders_and_replays(tmp_path):
    made = small_plan(method="fedasync", updates=15)
    inner = FakeGrid(lambda: 0.0, nodes(made, tmp_path / "homes"))
    grid = BackgroundGrid(LinkOfNodes(inner, slow={101, 102}), TransportLimits(fetchers=2, **FAST))
    d = driver(made, grid, tmp_path / "out", real_time=True)
    try:
        assert d.run() == "updates"
        assert {c for c in range(4) if d.stats[c].updates} == {0, 3}
    finally:
        d.close()
        grid.close()
    assert replay(tmp_path / "out").first_difference is None


def test_the_budget_of_time_is_kept_while_the_link_hangs(tmp_path):
    made = small_plan(method="fedasync", updates=None, time=1.0)
    link = FakeLink(present={100: "", 101: ""})
    link.open.clear()
    grid = BackgroundGrid(link, TransportLimits(**FAST))
    d = driver(made, grid, tmp_path / "out", real_time=True)
    try:
        assert d.run() == "time"
        assert not link.open.is_set()
    finally:
        link.open.set()
        d.close()
        grid.close()
