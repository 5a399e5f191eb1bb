"""What must not change a result: running it again, who trains, how far ahead, how often it is looked at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tarry
from tarry.record.result import sha256
from tarry.runs.simulation import Simulation
from tests.laws.variants import EVERYTHING, Choice, Row, every_method, everything, planned, row, simulate


def trace_and_sha(choice: Choice, **changes: Any) -> tuple[list[Row], str]:
    seen: list[Row] = []
    result = tarry.run(choice, callbacks=[lambda e: seen.append(row(e))], **{**EVERYTHING, **changes})
    return seen, result.weights_sha256


@every_method
def test_the_same_seed_gives_the_same_events_and_the_same_weights_to_the_bit(choice: Choice) -> None:
    assert trace_and_sha(choice) == trace_and_sha(choice)


@every_method
def test_another_seed_gives_other_weights(choice: Choice) -> None:
    assert trace_and_sha(choice, time=5.0)[1] != trace_and_sha(choice, time=5.0, seed=6)[1]


@every_method
@pytest.mark.parametrize("how", [{"workers": 2}, {"workers": 3, "lookahead": 3}], ids=["2-workers", "3-workers-ahead"])
def test_who_trains_and_how_far_ahead_changes_no_event_and_no_bit(choice: Choice, how: dict[str, Any]) -> None:
    log, digest = everything(choice)
    events, other = trace_and_sha(choice, **how)
    assert other == digest
    assert events == [tuple(e.values()) for e in log]


def test_a_pool_of_one_changes_no_bit() -> None:
    assert trace_and_sha({"name": "orthofl"}, executor="pool")[1] == everything({"name": "orthofl"})[1]


@every_method
def test_how_often_it_is_evaluated_changes_neither_weights_nor_the_order_of_events(choice: Choice) -> None:
    log, digest = everything(choice)
    for every in (0.5, 1000.0):
        events, other = trace_and_sha(choice, eval_every=every)
        assert other == digest
        assert [e for e in events if e[0] != "evaluate"] == [tuple(e.values()) for e in log if e["kind"] != "evaluate"]


@every_method
def test_callers_randomness_neither_matters_nor_is_touched(choice: Choice) -> None:
    digests = set()
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        digests.add(trace_and_sha(choice, time=5.0)[1])
        assert torch.equal(before, torch.get_rng_state())
    assert len(digests) == 1


@pytest.mark.parametrize("placement", ["client", "hybrid"])
@pytest.mark.parametrize("projection", ["layer", "full", "none"])
def test_orthofl_gives_the_same_weights_wherever_it_calibrates(placement: str, projection: str) -> None:
    """After every event, with lost visits and clients that come and go, to the rounding of 64-bit numbers."""

    def weights(where: str) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []
        choice = {"name": "orthofl", "projection": projection, "placement": where}
        tarry.run(choice, dtype="float64", callbacks=[lambda e: seen.append(e.weights)], **EVERYTHING)
        return seen

    torch.testing.assert_close(weights(placement), weights("server"), rtol=1e-9, atol=1e-10)


def test_orthofl_hybrid_lets_the_first_share_of_clients_calibrate_themselves() -> None:
    """A third of six: clients 0 and 1 are sent W(t) with β_t beside it after their first visit, the others never."""
    made = planned({"name": "orthofl", "placement": "hybrid", "share": 1 / 3}, **{**EVERYTHING, "concurrency": 6})
    executor, sent = Simulation(made).executor(), dict[int, set[str]]()

    def look(e: tarry.Event) -> None:
        if e.kind == "hand_out":
            sent.setdefault(e.client, set()).update(sim.server.tickets[e.ticket].payload)

    sim = Simulation(made).simulator(executor, [look])
    sim.run()
    executor.close()
    assert sent == {0: {"beta"}, 1: {"beta"}, 2: set(), 3: set(), 4: set(), 5: set()}


def test_orthofl_hybrid_by_speed_lets_the_clients_calibrate_themselves_that_arrive_first() -> None:
    delay = {"name": "scripted", "durations": [9.0, 2.0, 7.0, 3.0, 8.0, 6.0]}
    method = {"name": "orthofl", "placement": "hybrid", "share": 0.5, "capable": "speed"}
    made = planned(method, clients=6, concurrency=6, delay=delay, time=40.0)
    executor, sent = Simulation(made).executor(), dict[int, set[str]]()

    def look(e: tarry.Event) -> None:
        if e.kind == "hand_out":
            sent.setdefault(e.client, set()).update(sim.server.tickets[e.ticket].payload)

    sim = Simulation(made).simulator(executor, [look])
    sim.run()
    executor.close()
    assert sent == {0: set(), 1: {"beta"}, 2: set(), 3: {"beta"}, 4: set(), 5: {"beta"}}


def test_a_run_by_hand_is_the_run_of_the_front_door() -> None:
    """`everything` drives the simulator itself; `tarry.run` must come to the same."""
    log, digest = everything({"name": "orthofl"})
    events, other = trace_and_sha({"name": "orthofl"})
    assert (events, other) == ([tuple(e.values()) for e in log], digest)
    assert sha256(simulate(planned({"name": "orthofl"}, **EVERYTHING)).server.weights) == digest
