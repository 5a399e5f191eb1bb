"""A server keeps one copy of every past global that somebody is still training from, and not a moment longer."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import tarry
from tarry.core.layout import Layout
from tarry.core.optim import make_optimizer
from tarry.core.server import Server
from tarry.core.task import Task
from tarry.core.tickets import LocalResult
from tarry.record import checkpoint
from tarry.runs.simulation import Simulation
from tarry.sim.simulator import Simulator
from tarry.training.flat_model import FlatModel
from tarry.training.server_model import FlatServerModel
from tests.laws.variants import Choice, built, label, planned

N, AT_ONCE, SAMPLES = 12, 5, 40
MODEL, TABLE = 4 * (64 * 8 + 8 + 8 * 10 + 10), 4 * SAMPLES * 10  # bytes

#: short, medium and long visits; two clients so slow that many steps pass meanwhile
POOL: dict[str, Any] = {
    "task": {"name": "digits", "hidden": 8, "limit": 300},
    "clients": N,
    "concurrency": AT_ONCE,
    "delay": [[1.0 + 0.25 * (i % 5), 3.0] for i in range(N - 2)] + [[23.0, 9.0], [17.5]],
    "failure_rate": 0.1,
    "steps": 1,
    "batch": 8,
    "updates": 90,
    "unlabeled": {"name": "noise", "samples": SAMPLES},
}

ECHO: Choice = {"name": "fedecho", "buffer": 2, "lr": 0.01, "q": 1}
CHOICES: list[Choice] = [ECHO, {"name": "fedbuff", "buffer": 3}, {"name": "fedasync"}]


class Pool:
    """Watches which globals are in memory, by their version, through the life of their storage."""

    def __init__(self, sim: Simulator):
        self.sim = sim
        self.alive: dict[int, weakref.ref[Any]] = {}
        self.most = self.shared = self.freed = self.bytes = 0
        for t in sim.server.tickets.values():
            self.see(t.version, t.anchor)
        self.see(sim.server.version, sim.server.weights)

    def see(self, version: int, weights: torch.Tensor) -> None:
        self.alive.setdefault(version, weakref.ref(weights.untyped_storage()))

    def __call__(self) -> None:
        """After an instant there are the present global and those of tickets still out, each once; freed at once."""
        server = self.sim.server
        self.see(server.version, server.weights)
        gone = {v for v, ref in self.alive.items() if ref() is None}
        self.alive = {v: ref for v, ref in self.alive.items() if v not in gone}
        self.freed += len(gone)
        tickets = server.tickets.values()
        assert len(tickets) <= AT_ONCE
        assert set(self.alive) == {server.version, *(t.version for t in tickets)}
        past = {id(t.sent) for t in tickets}
        assert len(past) == len({t.version for t in tickets}), "who started from the same global shares it"
        assert all(t.sent is t.anchor for t in tickets)
        assert all(t.sent is server.weights for t in tickets if t.version == server.version)
        self.most = max(self.most, len(past))
        self.shared = max(self.shared, len(tickets) - len(past))
        distinct = past | {id(server.weights)}
        tables = len(server.state["aggregate"].logits) if self.sim.server.method.needs_unlabeled else 0
        self.bytes = max(self.bytes, len(distinct) * MODEL + tables * TABLE)


def run(sim: Simulator, between: Callable[[], None]) -> None:
    sim.run(between)
    sim.executor.close()


@pytest.mark.parametrize("choice", CHOICES, ids=label)
def test_past_globals_are_shared_bounded_by_the_concurrency_and_freed_with_their_last_ticket(choice: Choice) -> None:
    made = planned(choice, **POOL)
    sim = Simulation(made).simulator(Simulation(made).executor(), [])
    pool = Pool(sim)
    run(sim, pool)
    assert 2 < pool.most <= AT_ONCE
    assert pool.shared > 0
    assert pool.freed > 10
    assert sim.server.meter.peak >= pool.bytes


def test_a_run_taken_up_again_holds_no_more_and_frees_the_same(tmp_path: Path) -> None:
    made, saved = planned(ECHO, **POOL), list[Path]()
    sim = Simulation(made).simulator(Simulation(made).executor(), [])

    def save() -> None:
        if sim.engine.updates >= 30 and not saved:
            saved.append(checkpoint.Checkpoints(tmp_path / "at").save(1, sim.save()))

    run(sim, save)
    again = Simulation(made).simulator(Simulation(made).executor(), [])
    again.load(checkpoint.load(saved[0]))
    assert len({t.version for t in again.server.tickets.values()}) > 1
    pool = Pool(again)
    pool()
    run(again, pool)
    assert 2 < pool.most <= AT_ONCE
    assert pool.freed > 10
    assert again.server.meter.peak == sim.server.meter.peak


def test_the_peak_counts_past_globals_and_every_clients_logits() -> None:
    """At most the present global, M_c past ones and the sum of the buffer, and a table a client."""
    result = tarry.run(ECHO, **POOL)
    assert result.peak_server_bytes <= (1 + AT_ONCE + 1) * MODEL + N * TABLE
    assert result.peak_server_bytes >= 3 * MODEL + N * TABLE  # after the last client's first arrival


def test_the_peak_of_three_clients_by_hand() -> None:
    """Two in the buffer make a step: then x_1, x_0 of the client still out, the sum, a number again, and two tables."""
    x = torch.linspace(-1, 1, 60).view(20, 3)
    module = torch.nn.Linear(3, 4, bias=False)
    layout = Layout.of(module)
    task = Task("hand", lambda: module, cross_entropy, unlabeled=x)
    lab = FlatServerModel(FlatModel(copy.deepcopy(module), layout, task, make_optimizer(lr=1.0)))
    method = built({"name": "fedecho", "buffer": 2})
    server = Server(method, torch.zeros(12), layout=layout, n_clients=3, seed=0, model=lab)
    tickets = [server.hand_out(c, 0.0) for c in range(3)]
    p, t, peaks = 12 * 4, 20 * 4 * 4, []
    for ticket in tickets:
        server.receive(ticket.number, LocalResult(torch.ones(12) * (1 + ticket.client), 1, 1, 0.5), 1.0)
        peaks.append(server.meter.peak)
    assert peaks == [2 * p + t, 2 * p + 4 + 2 * t, 2 * p + 3 * t]
    assert server.version == 1
    assert server.meter.held == p
