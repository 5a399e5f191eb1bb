"""What a federation did, a simulator does again: the same weights to the bit, the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tarry.record.result import sha256
from tarry.record.rows import Log, end_of_rows, read_rows
from tarry.runs.replay import Record, replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan

METHODS = [
    "fedasync",
    "fedavg",
    "fedbuff:buffer=3",
    "orthofl",
    "orthofl:placement=client",
    "ca2fl:buffer=2",
    "mifa",
    "scaffold",
    "fedogd",
    "safa",
    "tifl:tiers=2",
    "fedecho",
    "moon",
]


@pytest.mark.parametrize("method", METHODS)
def test_a_simulator_reaches_the_weights_of_the_federation(method, tmp_path):
    made = small_plan(method=method, updates=16)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", lambda c, k: 2.0 + 3 * c + 0.7 * (k % 3)))
    d = driver(made, grid, tmp_path / "out")
    assert finished(d, grid) == "updates"
    events = []
    told = replay(tmp_path / "out", callbacks=(events.append,))
    assert told.first_difference is None
    assert told.weights_sha256 == sha256(d.engine.server.output_weights)
    assert told.updates == d.engine.updates == 16
    rows = [r for r in read_rows(tmp_path / "out" / "events.jsonl") if r["kind"] != "evaluate"]
    again = [e for e in events if e.kind != "evaluate"]
    assert [(r["kind"], r["time"], r.get("client", -1), r["version"]) for r in rows] == [
        (e.kind, e.time, e.client, e.version) for e in again
    ]


@pytest.mark.parametrize("schedule", ["cosine:length=4,warmup=2", "step:by=visits,every=2", "linear:by=time,length=30"])
def test_the_learning_rates_of_a_schedule_are_replayed(schedule, tmp_path):
    settings = {"server_lr_schedule": "exponential:factor=0.99,by=time", "clip_norm": 0.5}
    made = small_plan(method="fedbuff:buffer=2", updates=14, lr_schedule=schedule, **settings)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", lambda c, k: 2.0 + 3 * c + 0.7 * (k % 3)))
    d = driver(made, grid, tmp_path / "out")
    assert finished(d, grid) == "updates"
    told = replay(tmp_path / "out")
    assert told.same
    assert told.weights_sha256 == sha256(d.engine.server.output_weights)


def test_the_score_of_a_replay_is_the_first_metric_of_the_federation(tmp_path):
    made = small_plan(method="fedasync", updates=6, metric="f1,accuracy")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", lambda c, k: 2.0 + 3 * c + k % 3))
    d = driver(made, grid, tmp_path / "out")
    assert finished(d, grid) == "updates"
    told = replay(tmp_path / "out")
    assert (told.metric.name, told.score) == ("f1", d.engine.curve[-1].score)


def test_comings_goings_losses_and_deadlines_are_replayed(tmp_path):
    made = small_plan(method="orthofl", updates=20)
    grid = FakeGrid(Clock(), {})
    everybody = nodes(made, tmp_path / "homes", lambda c, k: 300.0 if (c, k) == (1, 2) else 2.0 + c)
    grid.there = {n: everybody[n] for n in (100, 101)}
    d = driver(made, grid, tmp_path / "out", deadline=40.0)
    moves = [
        (10, lambda: grid.there.update({102: everybody[102]})),
        (18, lambda: grid.there.pop(100)),
        (30, lambda: grid.there.update({104: everybody[100]})),  # the same client, at another node
        (33, lambda: grid.there.update({103: everybody[103]})),
    ]
    began = grid.clock()
    while not d.ended:
        while moves and grid.clock() - began >= moves[0][0]:
            moves.pop(0)[1]()
        d.tick()
        grid.clock.sleep(0.1)
    d.close()
    assert not moves
    kinds = {r["kind"] for r in read_rows(tmp_path / "out" / "events.jsonl")}
    assert {"join", "leave", "lost", "arrival", "hand_out"} <= kinds
    told = replay(tmp_path / "out")
    assert told.first_difference is None
    assert told.weights_sha256 == sha256(d.engine.server.output_weights)


def test_two_tickets_a_client_are_replayed(tmp_path):
    made = small_plan(method="fedasync", updates=20)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    assert d.engine.max_tickets == 2
    most = 0
    while not d.ended:
        d.tick()
        most = max(most, *d.engine.tickets_held)
        grid.clock.sleep(0.1)
    d.close()
    assert most == 2
    first = [e["client"] for e in read_rows(tmp_path / "out" / "events.jsonl") if e["kind"] == "hand_out"][:8]
    assert sorted(first) == [0, 0, 1, 1, 2, 2, 3, 3], "at once"
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def test_the_first_update_that_differs_is_named(tmp_path):
    made = small_plan(method="fedasync", updates=6)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    grid.there[102].worker.seed = 7
    d = driver(made, grid, tmp_path / "out")
    finished(d, grid)
    told = replay(tmp_path / "out")
    assert not told.same
    assert told.first_difference is not None
    assert told.first_difference[1:] == (2, 0)


def test_a_record_that_has_not_ended_is_replayed_to_its_last_whole_instant(tmp_path):
    made = small_plan(method="fedasync", updates=500)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    for _ in range(150):
        d.tick()
        grid.clock.sleep(0.1)
    d.close()
    weights = sha256(d.engine.server.output_weights)
    path = tmp_path / "out" / "journal.jsonl"
    journal = Log(path, end_of_rows(path))
    journal.append({"op": "lost", "t": 1e6, "number": min(d.engine.server.tickets), "bytes": 0, "why": "x"})
    journal.close()
    assert replay(tmp_path / "out").weights_sha256 == weights
    assert Record.read(Path(tmp_path / "out")).ended == ""
