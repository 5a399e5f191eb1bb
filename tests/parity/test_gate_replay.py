"""A federation whose model was restored, or which rejected updates, is resumed and replayed to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tarry.config.spec import Spec
from tarry.record.result import sha256
from tarry.record.rows import read_rows
from tarry.runs.build import BuiltRun, build_run
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes

TASK = '''
import torch
import tarry
from torch.nn.functional import cross_entropy
from tests.helpers.models import random_clients

def poisoned():
    """A client of five has inputs that are far too large: it trains honestly, and its updates are huge."""
    clients = random_clients([12] * 5, 6, 3, seed=1, scales=[1.0, 1.0, 1.0, 1.0, 1e6])
    test = random_clients([40], 6, 3, seed=2)[0]
    return tarry.Task("poisoned", lambda: torch.nn.Linear(6, 3), cross_entropy, clients=clients, test=test)
'''


def poisoned_plan(tmp_path: Path, method: str, **settings: object) -> BuiltRun:
    (tmp_path / "task.py").write_text(TASK)
    given = {"method": method, "task": f"{tmp_path / 'task.py'}:poisoned", "clients": 5, "epochs": 1, "gate": True}
    return build_run(Spec.of({**given, "delay": "constant", "updates": 50, "eval_every": 5.0, **settings}))


def pace(client: int, count: int) -> float:
    return (9.0 if client == 4 else 2.0 + client) + 0.3 * (count % 3)


METHODS = ["fedasync", "fedbuff:buffer=3", "orthofl", "fedavg", "scaffold", "ca2fl:buffer=2", "safa"]


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_federation_is_replayed_to_the_bit(method, tmp_path):
    made = poisoned_plan(tmp_path, method, norm_multiple=0.0)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", pace))
    d = driver(made, grid, tmp_path / "out")
    assert finished(d, grid) == "updates"
    rows = list(read_rows(tmp_path / "out" / "events.jsonl"))
    kinds = [r["kind"] for r in rows]
    assert kinds.count("alarm") == kinds.count("restore") == d.engine.alarms >= 1
    assert "ALARM" in (tmp_path / "out" / "log.jsonl").read_text()
    events = []
    told = replay(tmp_path / "out", callbacks=(events.append,))
    assert told.first_difference is None
    assert told.weights_sha256 == sha256(d.engine.server.output_weights)
    again = [e for e in events if e.kind != "evaluate"]
    assert [(r["kind"], r["time"], r.get("client", -1), r["version"]) for r in rows if r["kind"] != "evaluate"] == [
        (e.kind, e.time, e.client, e.version) for e in again
    ]


@pytest.mark.parametrize("method", ["fedbuff:buffer=3", "orthofl", "scaffold"])
def test_a_driver_that_is_killed_around_a_restore_goes_on_as_it_would_have(method, tmp_path):
    """It is ended every few looks, without a checkpoint, and the next one goes on with the same network."""
    made = poisoned_plan(tmp_path, method, norm_multiple=0.0)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", pace))
    d = driver(made, grid, tmp_path / "out")
    for look in range(4000):
        if d.ended:
            break
        d.tick()
        grid.clock.sleep(0.1)
        if look % 7 == 6:
            d.close()
            d = driver(made, grid, tmp_path / "out")
    finished(d, grid)
    assert d.ended == "updates"
    kinds = [r["kind"] for r in read_rows(tmp_path / "out" / "events.jsonl")]
    assert kinds.count("alarm") == kinds.count("restore") == d.engine.alarms >= 1
    told = replay(tmp_path / "out")
    assert told.first_difference is None
    assert told.weights_sha256 == sha256(d.engine.server.output_weights)


def test_rejections_are_replayed_with_their_reasons(tmp_path):
    made = poisoned_plan(tmp_path, "fedasync", quarantine=15.0)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", pace))
    d = driver(made, grid, tmp_path / "out", max_tickets_per_client=1)
    assert finished(d, grid) == "updates"
    events = []
    told = replay(tmp_path / "out", callbacks=(events.append,))
    assert told.first_difference is None
    assert told.weights_sha256 == sha256(d.engine.server.output_weights)
    recorded = [r for r in read_rows(tmp_path / "out" / "events.jsonl") if r["kind"] == "rejected"]
    assert [(r["time"], r["client"], r["reason"]) for r in recorded] == [
        (e.time, e.client, e.reason) for e in events if e.kind == "rejected"
    ]
    assert {(r["client"], r["reason"]) for r in recorded} == {(4, "norm")}
    assert len(recorded) >= 3


def test_void_tickets_are_late_answers_and_their_clients_get_work_afterwards(tmp_path):
    made = poisoned_plan(tmp_path, "fedasync", norm_multiple=0.0, updates=80)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", pace))
    d = driver(made, grid, tmp_path / "out", max_tickets_per_client=1)
    finished(d, grid)
    lost = [r for r in read_rows(tmp_path / "out" / "events.jsonl") if r["kind"] == "lost"]
    assert {r["reason"] for r in lost} == {"the model was restored"}
    assert sum(s.rejected["expired ticket"] for s in d.stats.clients.values()) >= 1
    assert all(s.updates > 3 for c, s in d.stats.clients.items() if c != 4)
    problems = [json.loads(line)["what"] for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert "an answer to a ticket that has ended" in problems
