"""Random arrivals, joins and leaves give the events that they gave before simulator and deployment shared the engine.

The golden file was written when a test still made each run with the engine and with the deployment's own loop, which
the engine has replaced, and both agreed. After an intended change, write it with

    python -m tests.engine.test_engine
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tarry.core.events import Event
from tarry.core.idle_clients import IdleClients
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import RunLimits
from tarry.core.rejections import Reason
from tarry.core.server import Server
from tarry.core.tickets import LocalResult
from tarry.engine.budget import Budget
from tarry.engine.engine import Engine
from tarry.methods import methods

GOLDEN = Path(__file__).parent / "random_runs.jsonl"
N, SIZE = 6, 5
LAYOUT = Layout((Block("w", 0, SIZE, (SIZE,), Kind.PARAM),))
RUNS: list[tuple[str, dict[str, Any], int]] = [  # method, its parameters, tickets a client may hold
    ("fedasync", {}, 2),
    ("fedasync", {}, 1),
    ("fedbuff", {"buffer": 3}, 2),
    ("orthofl", {}, 1),
    ("fedavg", {}, 1),
    ("safa", {}, 1),
    ("ca2fl", {"buffer": 2}, 1),
]
SEEDS = range(2)


def result_of(number: int, *, finite: bool = True) -> LocalResult:
    return LocalResult(torch.randn(SIZE, generator=torch.Generator().manual_seed(number)), 3, 2, 0.5, finite)


def engine_of(
    name: str, params: dict[str, Any], seed: int, *, away: bool = False, **settings: Any
) -> tuple[Engine, list[Event]]:
    """An engine of six clients and its events; the clients are `away` until they join."""
    events: list[Event] = []
    horizon = RunLimits(updates=40)
    server = Server(
        methods.build(name, **params), torch.zeros(SIZE), layout=LAYOUT, n_clients=N, seed=seed, limits=horizon
    )
    limit = settings.pop("limit", N)
    idle = IdleClients(N, limit, range(N) if away else ())
    budget = settings.pop("budget", Budget(updates=40, target=0.9))
    return Engine(server, idle, budget, listeners=[events.append], **settings), events


def drive(name: str, params: dict[str, Any], max_tickets: int, seed: int) -> tuple[Engine, list[list[Any]]]:
    """Make the run of this seed; return the engine and a row for each event."""
    rng = random.Random(seed)
    limit = rng.randint(2, N) * max_tickets
    engine, events = engine_of(name, dict(params), seed, away=True, limit=limit, max_tickets=max_tickets)
    assert engine.begin() == []
    out: list[int] = []
    time = 0.0
    for step in range(120):
        time = min(round(time + rng.choice([0.25, 0.5, 1.0]), 6), engine.next_wakeup())
        for number in sorted(rng.sample(out, min(len(out), rng.choice([0, 1, 1, 2])))):
            out.remove(number)
            fate = rng.random()
            if fate < 0.8:
                engine.accept(time, number, result_of(number), nbytes=77)
            else:
                engine.reject(time, number, Reason.NOT_FINITE) if fate > 0.9 else engine.lose(time, number)
            if engine.stop_reason:
                break
        if engine.stop_reason:
            break
        present = {c for c in range(N) if rng.random() < 0.9}
        out += [t.number for t, _ in engine.end_instant(time, engine.changes_to(present))]
        if step % 10 == 0:
            engine.score(time, {"accuracy": step / 200, "loss": 1.0})
    return engine, [
        [e.kind, e.time, e.version, e.updates, e.client, e.ticket, e.visit, e.staleness, e.stepped] for e in events
    ]


def golden_row(name: str, params: dict[str, Any], max_tickets: int, seed: int) -> dict[str, Any]:
    engine, events = drive(name, params, max_tickets, seed)
    return {
        "run": [name, params, max_tickets, seed],
        "decisions": engine.server.decisions,
        "counters": [engine.updates, engine.lost, engine.rejected, engine.bytes_up],
        "stop_reason": engine.stop_reason,
        "events": events,
    }


@pytest.mark.parametrize(
    "row", [json.loads(line) for line in GOLDEN.read_text().splitlines()], ids=lambda r: str(r["run"])
)
def test_random_runs_are_the_golden_ones(row: dict[str, Any]) -> None:
    assert golden_row(*row["run"]) == row
    assert row["counters"][0] > 0


def test_tickets_held_are_those_of_the_server() -> None:
    for name, params, max_tickets in RUNS:
        engine, _ = drive(name, params, max_tickets, 5)
        held = [sum(t.client == c for t in engine.server.tickets.values()) for c in range(N)]
        assert list(engine.tickets_held) == held
        assert max(held) <= max_tickets
        assert all(c not in engine.idle for c in range(N) if held[c] == max_tickets)


def test_a_saved_engine_goes_on_as_it_would_have() -> None:
    for name, params, max_tickets in RUNS:
        engine, _ = drive(name, params, max_tickets, 1)
        if engine.in_instant:
            continue
        again, _ = engine_of(name, dict(params), 1, away=True, max_tickets=max_tickets)
        again.load(engine.save())
        assert again.changes_to(range(N)) == engine.changes_to(range(N))
        assert list(again.tickets_held) == list(engine.tickets_held)
        assert (again.time, again.updates, again.curve) == (engine.time, engine.updates, engine.curve)


def test_a_result_that_is_not_finite_counts_as_rejected_however_it_arrives() -> None:
    for accepts in (True, False):
        engine, events = engine_of("fedasync", {}, 0)
        first, second = (t.number for t, _ in engine.begin(lambda *_: 1.0)[:2])
        engine.accept(1.0, first, result_of(first))
        if accepts:
            assert not engine.accept(1.0, second, result_of(second, finite=False)).accepted
        else:
            engine.reject(1.0, second, Reason.NOT_FINITE)
        assert (engine.updates, engine.rejected, engine.lost, engine.consecutive_rejections) == (1, 1, 0, 1)
        assert events[-1].kind == "rejected"
        assert events[-1].loss == (0.5 if accepts else None)
        assert engine.bytes_up == SIZE * 4, "computed where it was not measured"


def test_a_client_without_a_duration_leaves_and_another_gets_its_place() -> None:
    engine, events = engine_of("fedasync", {}, 0, limit=3)
    handouts = engine.begin(lambda client, visit: None if client < 3 else 2.0)
    assert sorted(t.client for t, _ in handouts) == [3, 4, 5]
    left = [e.client for e in events if e.kind == "leave"]
    assert set(left) <= {0, 1, 2}
    assert all(c not in engine.idle for c in left)


@pytest.mark.parametrize(
    ("budget", "reason"), [(Budget(updates=1), "updates"), (Budget(rounds=1), "rounds"), (Budget(updates=9), "")]
)
def test_stop_reason_is_set_by_the_arrival_that_uses_up_the_budget(budget: Budget, reason: str) -> None:
    engine, _ = engine_of("fedasync", {}, 0, budget=budget)
    (ticket, seconds), *_ = engine.begin(lambda *_: 1.0)
    assert seconds == 1.0
    engine.accept(1.0, ticket.number, result_of(0))
    assert engine.stop_reason == reason


def test_instants_follow_one_another() -> None:
    engine, _ = engine_of("fedasync", {}, 0)
    engine.begin()
    engine.end_instant(1.0)
    with pytest.raises(AssertionError, match="follow one another"):
        engine.end_instant(1.0)


if __name__ == "__main__":
    rows = [golden_row(*run, seed) for run in RUNS for seed in SEEDS]
    GOLDEN.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
