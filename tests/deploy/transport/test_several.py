"""Several links as one grid: whose node is whose, and what the end of one changes."""

from __future__ import annotations

import pytest

from tarry.deploy.transport.several import SeveralLinks
from tarry.deploy.wire import NODE_BITS, RunEnded, flower_node
from tarry.record.result import sha256
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan

SECOND = 1 << NODE_BITS


def grids(tmp_path, made, clock):
    """Clients 0 and 1 at one link and 2 and 3 at another, whose nodes have the same numbers."""
    everyone = nodes(made, tmp_path / "homes")
    first = FakeGrid(clock, {100: everyone[100], 101: everyone[101]}, run="7")
    second = FakeGrid(clock, {100: everyone[102], 101: everyone[103]}, run="8")
    return first, second


def test_the_nodes_of_two_links_take_part_and_the_record_replays(tmp_path):
    made = small_plan(method="orthofl", updates=30)
    first, second = grids(tmp_path, made, Clock())
    grid = SeveralLinks([first, second])
    assert grid.nodes().keys() == {100, 101, SECOND | 100, SECOND | 101}
    grid.clock = first.clock
    d = driver(made, grid, tmp_path / "out")
    assert finished(d, grid) == "updates"
    assert all(d.stats[c].updates for c in range(4))
    assert d.clients.node(2) == SECOND | 100
    assert all(flower_node(r.node) in (100, 101) for r in [*first.log, *second.log])
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def test_a_run_of_one_link_that_began_again_loses_its_tickets_alone(tmp_path):
    made = small_plan(method="orthofl", updates=40)
    first, second = grids(tmp_path, made, Clock())
    grid = SeveralLinks([first, second])
    grid.clock = first.clock
    d = driver(made, grid, tmp_path / "out")
    while d.engine.updates < 8:
        d.tick()
        grid.clock.sleep(0.1)
    second.run = "9"
    d.tick()
    assert {c for c in range(4) if d.stats[c].failed} <= {2, 3}
    assert {c for c in range(4) if d.stats[c].failed}
    assert finished(d, grid) == "updates"
    assert replay(tmp_path / "out").first_difference is None


class Ended(FakeGrid):
    def _reachable(self) -> None:
        raise RunEnded("Flower has ended the run")


def test_the_end_of_a_further_run_ends_only_its_nodes():
    first, second = FakeGrid(Clock(), {100: None}), Ended(Clock(), {100: None})
    assert SeveralLinks([first, second]).nodes() == {100: ""}
    assert SeveralLinks([first, second]).pull(["a", "1/b"]) == []
    with pytest.raises(RunEnded):
        SeveralLinks([second, first]).nodes()
