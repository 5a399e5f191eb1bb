"""A run that is saved and taken up again, or recorded and replayed, is the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.core.parts import REFILL
from tarry.record import checkpoint
from tarry.record.result import sha256
from tarry.record.rows import read_rows
from tarry.runs.simulation import Simulation
from tests.laws.variants import EVERYTHING, VARIANTS, Choice, Row, built, every_method, everything, planned, row


@every_method
def test_a_run_saved_at_any_instant_and_taken_up_afresh_ends_the_same(choice: Choice, tmp_path: Path) -> None:
    """Saved to a file after the 1st, 6th and 17th instant; the rest of the log and the final weights are the same."""
    log, digest = everything(choice)
    made = planned(choice, **EVERYTHING)
    executor, seen, saved = Simulation(made).executor(), list[Row](), dict[Path, int]()
    sim = Simulation(made).simulator(executor, [lambda e: seen.append(row(e))])
    instants = [0]

    def between() -> None:
        instants[0] += 1
        if instants[0] in (1, 6, 17):
            saved[checkpoint.Checkpoints(tmp_path / f"{instants[0]}").save(1, sim.save())] = len(seen)

    sim.run(between)
    executor.close()
    assert sha256(sim.server.output_weights) == digest, "saving disturbs nothing"
    assert len(saved) == 3
    for path, rows in saved.items():
        executor, rest = Simulation(made).executor(), list[Row]()
        fresh = Simulation(made).simulator(executor, [lambda e, rest=rest: rest.append(row(e))])  # type: ignore[misc]
        fresh.load(checkpoint.load(path))
        fresh.run()
        executor.close()
        assert rest == [tuple(e.values()) for e in log[rows:]]
        assert sha256(fresh.server.output_weights) == digest
        assert fresh.engine.curve == sim.engine.curve
        assert fresh.engine.staleness == sim.engine.staleness
        assert (fresh.engine.bytes_up, fresh.engine.bytes_down) == (sim.engine.bytes_up, sim.engine.bytes_down)
        assert fresh.server.meter.peak == sim.server.meter.peak


DRAWN: dict[str, Any] = {**EVERYTHING, "delay": {"name": "lognormal", "mean": 1.5, "sd": 1.5}}


@every_method
def test_a_recorded_run_replays_to_the_same_arrivals_and_weights(choice: Choice, tmp_path: Path) -> None:
    """The trace carries durations and losses; who is there when is a setting of its own and is given again."""
    first = tarry.run(choice, out=tmp_path / "first", **DRAWN)
    assert first.lost > 0
    replay: dict[str, Any] = {**DRAWN, "delay": {"name": "trace", "path": str(tmp_path / "first" / "arrivals.csv")}}
    del replay["failure_rate"]
    second = tarry.run(choice, out=tmp_path / "second", **replay)
    assert second.weights_sha256 == first.weights_sha256
    logs = [list(read_rows(tmp_path / name / "events.jsonl")) for name in ("first", "second")]
    assert logs[0] == logs[1]


def test_every_method_of_a_comparison_meets_the_same_durations_and_losses(tmp_path: Path) -> None:
    settings = {k: v for k, v in DRAWN.items() if k not in ("task", "seed", "availability")}
    tarry.compare(VARIANTS, EVERYTHING["task"], seeds=[3], out=tmp_path, **settings)
    logs = [list(read_rows(path)) for path in sorted(tmp_path.glob("*/seed-3/events.jsonl"))]
    assert len(logs) == len(VARIANTS)
    seconds: dict[tuple[int, int], set[float]] = {}
    fates: dict[tuple[int, int], set[str]] = {}
    for log in logs:
        for e in log:
            if e["kind"] == "hand_out":
                seconds.setdefault((e["client"], e["visit"]), set()).add(e["seconds"])
            elif e["kind"] in ("arrival", "lost"):
                fates.setdefault((e["client"], e["visit"]), set()).add(e["kind"])
    assert all(len(s) == 1 for s in seconds.values())
    assert all(len(f) == 1 for f in fates.values())
    assert len({s for one in seconds.values() for s in one}) == len(seconds) >= 40
    assert {"lost", "arrival"} == {f for one in fates.values() for f in one}


ASYNCHRONOUS = [c for c in VARIANTS if built(c).dispatch is REFILL]


@pytest.mark.parametrize("concurrency", [3, 6])
def test_asynchronous_methods_of_a_seed_share_one_order_of_updates(concurrency: int) -> None:
    orders = []
    for choice in ASYNCHRONOUS:
        seen: list[tuple[float, int]] = []
        note = lambda e, seen=seen: seen.append((e.time, e.client)) if e.kind == "arrival" else None  # noqa: E731
        tarry.run(choice, callbacks=[note], **{**DRAWN, "concurrency": concurrency})
        orders.append(seen)
    assert all(order == orders[0] for order in orders)
