"""The engine and the deployment's course make the same run of the same random arrivals, joins and leaves."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tarry.core.events import Event
from tarry.core.idle_clients import Roster
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import Horizon
from tarry.core.server import Server
from tarry.core.tickets import Trained
from tarry.deploy.server.course import Course
from tarry.engine.budget import Budget
from tarry.engine.engine import Engine
from tarry.methods import methods

N, SIZE = 6, 5
LAYOUT = Layout((Block("w", 0, SIZE, (SIZE,), Kind.PARAM),))
METHODS: list[tuple[str, dict[str, Any], int]] = [
    ("fedasync", {}, 2),
    ("fedasync", {}, 1),
    ("fedbuff", {"buffer": 3}, 2),
    ("orthofl", {}, 1),
    ("fedavg", {}, 1),
    ("safa", {}, 1),
    ("ca2fl", {"buffer": 2}, 1),
]


def row(e: Event) -> tuple[Any, ...]:
    plain = (e.kind, e.time, e.version, e.updates, e.client, e.ticket, e.visit, e.staleness, e.stepped)
    return (*plain, e.seconds, e.loss, e.accuracy, e.weights.tolist())


def server(name: str, params: dict[str, Any], seed: int) -> Server:
    method = methods.build(name, dict(params))
    return Server(method, torch.zeros(SIZE), layout=LAYOUT, n_clients=N, seed=seed, horizon=Horizon(updates=40))


def drive(name: str, params: dict[str, Any], per_client: int, seed: int) -> tuple[Any, Any]:
    rng = random.Random(seed)
    concurrency = rng.randint(2, N)
    seen: tuple[list[Event], list[Event]] = ([], [])
    course = Course(
        server(name, params, seed),
        concurrency=concurrency,
        per_client=per_client,
        horizon=Horizon(updates=40),
        target=0.9,
        listeners=[seen[0].append],
    )
    engine = Engine(
        server(name, params, seed),
        Roster(N, concurrency * per_client, range(N)),
        Budget(updates=40, target=0.9),
        max_tickets=per_client,
        listeners=[seen[1].append],
    )
    course.begin()
    assert engine.begin() == []
    out: list[int] = []
    time = 0.0
    for step in range(120):
        time = round(time + rng.choice([0.25, 0.5, 1.0]), 6)
        assert course.wakes() == engine.next_wakeup()
        time = min(time, course.wakes())
        for number in sorted(rng.sample(out, min(len(out), rng.choice([0, 1, 1, 2])))):
            out.remove(number)
            fate = rng.random()
            if fate < 0.8:
                result = Trained(torch.randn(SIZE, generator=torch.Generator().manual_seed(number)), 3, 2, 0.5)
                course.update(time, number, result, nbytes=77, keeps=False)
                engine.accept(time, number, result, nbytes=77)
            else:
                course.fail(time, number, refused=fate > 0.9)
                engine.lose(time, number, rejected=fate > 0.9)
            if course.done:
                break
        assert course.done == engine.stop_reason
        if course.done:
            break
        present = {c for c in range(N) if rng.random() < 0.9}
        changes = course.changes(present)
        assert changes == engine.changes_to(present)
        tickets = course.close(time, changes)
        handouts = engine.end_instant(time, changes)
        assert [(t.number, t.client, t.visit) for t in tickets] == [(t.number, t.client, t.visit) for t, _ in handouts]
        out += [t.number for t in tickets]
        if step % 10 == 0:
            course.score(time, step / 200, 1.0)
            engine.score(time, step / 200, 1.0)
    assert [row(e) for e in seen[0]] == [row(e) for e in seen[1]]
    return course, engine


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("name", "params", "per_client"), METHODS)
def test_the_engine_makes_the_run_of_the_course(name, params, per_client, seed):
    course, engine = drive(name, params, per_client, seed)
    assert torch.equal(course.server.weights, engine.server.weights)
    assert course.server.moments == engine.server.moments
    for left, right in [("updates",) * 2, ("lost",) * 2, ("rejected",) * 2, ("bytes_up",) * 2, ("curve",) * 2]:
        assert getattr(course, left) == getattr(engine, right)
    assert course.staleness == engine.staleness
    assert {c: n for c, n in course.load.items() if n} == {c: n for c, n in enumerate(engine.tickets_held) if n}
    assert sorted(course.roster) == sorted(engine.idle)
    assert course.updates > 0
