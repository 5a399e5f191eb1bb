"""The gate that an update passes before a method sees it."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

from tarry.core.events import Event
from tarry.core.idle_clients import IdleClients
from tarry.core.layout import Block, Kind, Layout
from tarry.core.rejections import Reason
from tarry.core.server import Server
from tarry.core.tickets import LocalResult
from tarry.engine.budget import Budget
from tarry.engine.engine import Engine
from tarry.engine.gate import Gate, GateSettings
from tarry.engine.model_monitor import ModelMonitor
from tarry.methods import methods

SIZE, CLIENTS = 8, 6


def gate_of(**settings: Any) -> Gate:
    return Gate(GateSettings(**settings), torch.zeros(SIZE), CLIENTS)


def result(scale: float = 1.0, **changed: Any) -> LocalResult:
    delta = torch.full((SIZE,), scale)
    return LocalResult(delta, 10, 5, 0.5)._replace(**changed)


def learned(gate: Gate, rounds: int = 4) -> Gate:
    for _ in range(rounds):
        for client in range(CLIENTS):
            verdict = gate.examine(client, result(1.0 + 0.1 * client))
            assert verdict.reason is None
            gate.record_acceptance(client, verdict.sizes)
    return gate


BAD: dict[str, tuple[LocalResult, Reason]] = {
    "a huge number in every place": (result(1e30), Reason.NORM),
    "thirty times the usual": (result(40.0), Reason.NORM),
    "one huge number": (result(delta=torch.eye(SIZE)[0] * 1e30), Reason.NORM),
    "numbers whose squares are no numbers": (result(3e38), Reason.NORM),
    "NaN": (result(delta=torch.full((SIZE,), nan), finite=False), Reason.NOT_FINITE),
    "infinity that is claimed to be finite": (result(inf), Reason.NOT_FINITE),
    "NaN in an extra": (result(extras={"x": torch.tensor([nan])}), Reason.NOT_FINITE),
    "a huge extra": (result(extras={"x": torch.full((SIZE,), 1e30)}), Reason.NORM),
    "another shape": (result(delta=torch.ones(SIZE - 1)), Reason.ARRAYS),
    "a matrix": (result(delta=torch.ones(2, SIZE // 2)), Reason.ARRAYS),
    "another type": (result(delta=torch.ones(SIZE, dtype=torch.float64)), Reason.ARRAYS),
    "an extra larger than the model": (result(extras={"x": torch.ones(SIZE + 1)}), Reason.ARRAYS),
    "a loss beyond all bounds": (result(loss=1e200), Reason.METADATA),
    "five times as many examples as before": (result(n_examples=50), Reason.EXAMPLES),
    "a thousand million examples": (result(n_examples=10**9), Reason.EXAMPLES),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_update_is_rejected_with_its_reason(what):
    bad, reason = BAD[what]
    verdict = learned(gate_of()).examine(2, bad)
    assert verdict.reason is reason
    assert verdict.detail


def test_a_huge_first_update_is_rejected_before_anything_is_known():
    assert gate_of().examine(0, result(1e6)).reason is Reason.NORM
    assert gate_of().examine(0, result(1.0)).reason is None


def test_a_new_client_that_claims_far_more_examples_than_all_others_is_rejected():
    gate = gate_of()
    for _ in range(4):
        for client in range(3):
            gate.record_acceptance(client, gate.examine(client, result()).sizes)
    assert gate.examine(5, result(n_examples=2000)).reason is None
    assert gate.examine(5, result(n_examples=20_000)).reason is Reason.EXAMPLES


def test_declared_bounds_hold_from_the_first_update_on():
    assert gate_of(max_examples=5).examine(0, result()).reason is Reason.EXAMPLES
    assert gate_of(norm_bound=1.0).examine(0, result()).reason is Reason.NORM
    assert gate_of(max_examples=10, norm_bound=3.0).examine(0, result()).reason is None


def test_without_a_multiple_any_finite_norm_passes():
    assert learned(gate_of(norm_multiple=0.0)).examine(0, result(1e30)).reason is None


def test_an_examination_changes_nothing():
    gate = learned(gate_of())
    before = gate.save()
    gate.examine(0, result(1e30))
    assert gate.save() == before


def test_a_poisoner_who_grows_slowly_gains_no_more_than_the_multiple():
    """It sends the largest update that is accepted, each time."""
    gate = learned(gate_of(), 10)
    largest = 0.0
    for _ in range(300):
        limit = 0.99 * gate._typical["delta"].limit(0)
        largest = max(largest, limit)
        for client in range(CLIENTS):
            given = result(limit / SIZE**0.5) if client == 0 else result(1.0)
            verdict = gate.examine(client, given)
            assert verdict.reason is None
            gate.record_acceptance(client, verdict.sizes)
    assert largest < 20 * 1.5 * SIZE**0.5


def test_clients_whose_data_differ_are_not_rejected():
    """Norms between a fifth and five times the median, and a hundred times as many examples."""
    gate = gate_of()
    for round_ in range(20):
        for client in range(CLIENTS):
            scale = 5.0 ** ((client - 2.5) / 2.5) * (1.2 if round_ % 2 else 0.8)
            verdict = gate.examine(client, result(scale, n_examples=4 ** (client + 1)))
            assert verdict.reason is None, (client, verdict)
            gate.record_acceptance(client, verdict.sizes)


def test_updates_that_become_larger_for_all_are_accepted_after_a_while():
    gate = learned(gate_of(quarantine=0.0))
    rejected = 0
    for _ in range(10):
        for client in range(CLIENTS):
            verdict = gate.examine(client, result(60.0))
            rejected += verdict.reason is not None
            if verdict.reason is None:
                gate.record_acceptance(client, verdict.sizes)
            else:
                gate.record_rejection(client, 0.0, verdict.sizes)
    assert 0 < rejected < 40
    assert gate.examine(0, result(60.0)).reason is None


def test_a_loaded_gate_goes_on_alike():
    gate, again = learned(gate_of()), gate_of()
    for _ in range(3):
        gate.record_rejection(1, 5.0, {"delta": 1e30, ".x": 3.0})
    again.load(gate.save())
    assert again.save() == gate.save()
    assert again.examine(1, result(10.0)) == gate.examine(1, result(10.0))
    assert again.quarantine.quarantined(6.0) == gate.quarantine.quarantined(6.0) == {1: 65.0}


def engine_of(name: str = "fedasync", **params: Any) -> tuple[Engine, list[Event]]:
    layout = Layout((Block("w", 0, SIZE, (SIZE,), Kind.PARAM),))
    events: list[Event] = []
    weights = torch.zeros(SIZE)
    server = Server(methods.build(name, **params), weights, layout=layout, n_clients=CLIENTS, seed=0)
    gate = Gate(GateSettings(), weights, CLIENTS)
    idle = IdleClients(CLIENTS, CLIENTS)
    budget = Budget(updates=1000)
    engine = Engine(server, idle, budget, gate=gate, monitor=ModelMonitor(5.0), listeners=[events.append])
    return engine, events


def test_a_rejected_update_changes_no_weights_and_is_counted_by_client_and_reason():
    engine, events = engine_of()
    tickets = [t for t, _ in engine.begin()]
    for k, ticket in enumerate(tickets[:3]):
        engine.accept(1.0 + k, ticket.number, result())
    weights = engine.server.weights
    receipt = engine.accept(9.0, tickets[3].number, result(1e30))
    assert not receipt.accepted
    assert engine.server.weights is weights
    assert engine.rejections == {tickets[3].client: {Reason.NORM: 1}}
    assert (events[-1].kind, events[-1].reason, engine.rejected) == ("rejected", "norm", 1)


@pytest.mark.parametrize("method", ["fedasync", "fedbuff", "fedavg", "fadas", "ca2fl", "mifa", "safa", "tifl"])
def test_a_restored_server_has_the_healthy_state_and_goes_on(method):
    """Every method, with rounds and epochs too, continues after a restore; void tickets are lost."""
    engine, events = engine_of(method)
    out = [t.number for t, _ in engine.begin()]
    time = 0.0
    engine.score(0.0, {"accuracy": 0.1, "loss": 2.3}, 2.3)

    def advance(steps: int, scale: float) -> None:
        nonlocal time, out
        for _ in range(steps):
            wakeup = engine.next_wakeup()
            time = min(time + 1.0, wakeup) if wakeup > time else time + 1.0
            for number in out[:2]:
                engine.accept(time, number, result(scale))
            out = [n for n in out[2:] if n in engine.server.tickets]
            out += [t.number for t, _ in engine.end_instant(time, ())]
            out = [n for n in out if n in engine.server.tickets]

    advance(12, 0.1)
    engine.score(time, {"accuracy": 0.5, "loss": 1.0}, 1.0)
    healthy, version, updates = engine.server.weights, engine.server.version, engine.updates
    numbers = engine.server.numbers
    advance(6, 1.0)
    engine.score(time, {"accuracy": 0.1, "loss": 1e9}, 1e9)
    assert engine.next_restore > time
    assert events[-1].kind == "alarm"
    open_before = set(engine.server.tickets)
    time = engine.next_wakeup()
    assert engine.end_instant(time, ()) == [], "no work is handed out"
    assert engine.next_restore == inf
    assert torch.equal(engine.server.weights, healthy) or engine.server.version > version + 1
    assert engine.server.version > version
    assert set(engine.server.tickets) == {n for n in open_before if n < numbers}
    assert {t.number for t in engine.voided} == {n for n in open_before if n >= numbers}
    restored = next(e for e in events if e.kind == "restore")
    assert restored.version <= engine.server.version
    held = [sum(t.client == c for t in engine.server.tickets.values()) for c in range(CLIENTS)]
    assert list(engine.tickets_held) == held
    out = sorted(engine.server.tickets)
    advance(40, 0.1)
    assert engine.updates > updates + 10, "it goes on"


def test_a_saved_engine_restores_alike():
    engine, _ = engine_of("fedbuff", buffer=2)
    out = [t.number for t, _ in engine.begin()]
    engine.score(0.0, {"accuracy": 0.1, "loss": 1.0}, 1.0)
    for k, number in enumerate(out[:3]):
        engine.accept(1.0 + k, number, result())
    engine.end_instant(3.0, ())
    engine.score(4.0, {"accuracy": 0.1, "loss": nan}, nan)
    again, _ = engine_of("fedbuff", buffer=2)
    again.load(engine.save())
    for one in (engine, again):
        one.end_instant(one.next_wakeup(), ())
    assert torch.equal(again.server.weights, engine.server.weights)
    assert again.server.save().keys() == engine.server.save().keys()
    assert set(again.server.tickets) == set(engine.server.tickets)
    assert again.next_wakeup() == engine.next_wakeup()
