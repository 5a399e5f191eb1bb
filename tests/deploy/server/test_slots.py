"""Slots: nodes without a key that come back as another node, names that keep their slot, release by command."""

from __future__ import annotations

import pytest

from tarry.core.errors import BadInput
from tarry.deploy.server.slots import read_slots, request_release, requested_releases
from tarry.record.result import sha256
from tarry.record.rows import read_rows
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan


def until(d, grid, done, *, most=6000):
    for _ in range(most):
        if done():
            return
        d.tick()
        grid.clock.sleep(0.1)
    raise AssertionError("it never happens")


def federation(tmp_path, *, method="orthofl:placement=client", **terms):
    made = small_plan(method=method, updates=60)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    return grid, driver(made, grid, tmp_path / "out", **terms)


def names(tmp_path):
    return {slot.client: slot.name for slot in read_slots(tmp_path / "out").taken}


def test_a_released_slot_goes_to_another_client_and_the_replay_is_exact(tmp_path):
    """Its clients keep a memory: the newcomer in the slot begins without that of the client before."""
    grid, d = federation(tmp_path)
    until(d, grid, lambda: d.stats[3].updates >= 2)
    newcomer = grid.there.pop(103)
    request_release(tmp_path / "out", "client 3")
    until(d, grid, lambda: 3 not in names(tmp_path))
    assert requested_releases(tmp_path / "out") == []
    assert d.deadlines.deadline(3) == d.config.deadline, "what was learned of the client before is forgotten"
    until(d, grid, lambda: not d.open_tickets or all(t.client != 3 for t in d.open_tickets))
    newcomer.name, newcomer.free = "another", 0.0
    newcomer.worker.store.folder = tmp_path / "homes" / "another"
    newcomer.worker.store.folder.mkdir()
    grid.there[203] = newcomer
    before = d.stats[3].updates
    until(d, grid, lambda: d.stats[3].updates >= before + 2)
    assert names(tmp_path)[3] == "another"
    assert finished(d, grid) == "updates"
    told = replay(tmp_path / "out")
    assert told.first_difference is None
    assert told.weights_sha256 == sha256(d.engine.server.output_weights)


def test_a_client_that_lost_its_memory_is_replayed_without_it(tmp_path):
    grid, d = federation(tmp_path)
    until(d, grid, lambda: d.stats[0].updates >= 3)
    for path in (tmp_path / "homes" / "0").rglob("*.safetensors"):
        path.unlink()
    until(d, grid, lambda: d.stats[0].memory_lost == 1)
    assert finished(d, grid) == "updates"
    assert replay(tmp_path / "out").first_difference is None


def test_the_open_ticket_of_a_released_slot_is_lost_and_a_node_that_is_here_registers_again(tmp_path):
    grid, d = federation(tmp_path, method="fedasync")
    until(d, grid, lambda: d.stats[3].updates >= 1 and any(t.client == 3 and t.request for t in d.open_tickets))
    request_release(tmp_path / "out", "client 3")
    until(d, grid, lambda: d.stats[3].failed["its slot was released"] + d.stats[3].failed["its node restarted"] >= 1)
    until(d, grid, lambda: names(tmp_path).get(3) == "client 3")
    assert finished(d, grid) == "updates"
    assert replay(tmp_path / "out").first_difference is None


def test_releases_are_in_the_journal_and_survive_a_kill(tmp_path):
    grid, d = federation(tmp_path)
    until(d, grid, lambda: d.stats[2].updates >= 1)
    del grid.there[102]
    request_release(tmp_path / "out", "client 2")
    until(d, grid, lambda: 2 not in names(tmp_path))
    d.close()
    assert sum(r["op"] == "release" for r in read_rows(tmp_path / "out" / "journal.jsonl")) == 1
    again = driver(small_plan(method="orthofl:placement=client", updates=60), grid, tmp_path / "out")
    assert again.clients.place_of("client 2") is None
    assert finished(again, grid) == "updates"
    assert replay(tmp_path / "out").first_difference is None


def test_only_slots_that_are_taken_can_be_released(tmp_path):
    grid, d = federation(tmp_path)
    until(d, grid, lambda: len(names(tmp_path)) == 4)
    d.close()
    with pytest.raises(BadInput, match="no slot is its; taken are those of 'client 0', 'client 1'"):
        request_release(tmp_path / "out", "nobody")
    with pytest.raises(BadInput, match="no federation was recorded"):
        read_slots(tmp_path)
    (tmp_path / "out" / "release").mkdir()
    (tmp_path / "out" / "release" / "a.json").write_text("[")
    assert requested_releases(tmp_path / "out") == [], "what cannot be read is removed"
    assert not list((tmp_path / "out" / "release").iterdir())


def test_the_commands_list_and_release(tmp_path, cli):
    grid, d = federation(tmp_path)
    until(d, grid, lambda: len(names(tmp_path)) == 4)
    d.close()
    code, text = cli("federation", "slots", tmp_path / "out")
    assert code == 0
    assert "4 of 4 slots are taken" in text
    assert "client 2" in text
    assert '"slots": 4' in cli("federation", "slots", tmp_path / "out", "--json")[1]
    assert cli("federation", "release", tmp_path / "out", "nobody")[0] == 2
