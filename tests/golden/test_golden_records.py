"""Saved records of a simulator and of a federation, written before both used the engine, still load and go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tarry.config.spec import Spec
from tarry.core.events import Event
from tarry.record import checkpoint
from tarry.record.rows import read_rows
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation
from tarry.training.determinism import deterministic
from tests.golden.traces import KEPT, SETTINGS

RECORDS = Path(__file__).parent / "records"


def keys_of(record: Any, path: str = "") -> set[str]:
    """The keys of the dictionaries in a record; those that are numbers or names of tensors belong to the run."""
    if not isinstance(record, dict):
        return set()
    texts = {k: v for k, v in record.items() if isinstance(k, str)}
    return {path + k for k in texts} | {x for k, v in texts.items() for x in keys_of(v, f"{path}{k}.")}


def simulated(saved: Any = None) -> tuple[list[dict[str, Any]], list[Any]]:
    """The events of a run, from the start or from a saved record, and what it saves at time 20."""
    made = Simulation(build_run(Spec.of({**SETTINGS, "method": "fedasync", "local": "moon", "diagnose": True})))
    events: list[dict[str, Any]] = []
    records: list[Any] = []

    def note(e: Event) -> None:
        events.append({field: getattr(e, field) for field in KEPT})

    with deterministic():
        executor = made.executor()
        sim = made.simulator(executor, [note])
        if saved is not None:
            sim.load(saved)
        sim.run(lambda: records.append(sim.save()) if sim.time >= 20 and not records else None)
        executor.close()
        sim.close()
    return events, records


def test_a_simulator_goes_on_from_the_golden_record_and_writes_the_same_keys() -> None:
    golden = checkpoint.load(RECORDS / "simulator.safetensors")
    whole, records = simulated()
    rest, _ = simulated(golden)
    assert rest == [e for e in whole if e["time"] > golden["time"]]
    assert len(rest) > 10
    (now,) = records
    assert keys_of(now) == keys_of(golden)
    plain = ("time", "updates", "lost", "rejected", "bytes_up", "bytes_down", "started", "done", "doomed", "heap")
    counters = ("staleness", "rejections", "scored", "in_vain", "_change", "_evaluations", "_next_score", "roster")
    assert {k: now[k] for k in (*plain, *counters)} == {k: golden[k] for k in (*plain, *counters)}


def test_a_federation_goes_on_from_the_golden_folder_and_writes_the_same_keys(tmp_path: Path) -> None:
    from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan

    folder = tmp_path / "out"
    shutil.copytree(RECORDS / "federation", folder)
    golden = checkpoint.load(folder / "checkpoints" / "00000002.safetensors")
    rows = (folder / "journal.jsonl").read_text()
    made = small_plan(method="fedasync", local="moon", updates=16, gate=False)  # as the golden federation
    grid = FakeGrid(Clock(1e9 + 40.0), nodes(made, tmp_path / "homes"), run="2")
    d = driver(made, grid, folder, checkpoint_every=4.0)
    assert d.engine.updates == rows.count('"op":"update"') == 7
    assert finished(d, grid) == "updates"
    assert (folder / "journal.jsonl").read_text().startswith(rows)
    newest = checkpoint.load(max((folder / "checkpoints").glob("*.safetensors")))
    assert keys_of(newest) == keys_of(golden) | {"course.rejections"}  # by client and reason, since the gate


def test_a_migrated_federation_has_no_token_on_disk_and_resumes(tmp_path: Path) -> None:
    from tools.migrate import migrate

    from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan

    folder = tmp_path / "out"
    shutil.copytree(RECORDS / "federation", folder)
    closes = [row for row in read_rows(folder / "journal.jsonl") if row["op"] == "close"]
    tokens = [handout[3].encode() for row in closes for handout in row["handouts"]]
    assert {len(token) for token in tokens} == {32}
    assert migrate(tmp_path) > 0
    assert migrate(tmp_path) == 0, "the second time there is nothing to do"
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert [token for token in tokens for content in contents if token in content] == []
    made = small_plan(method="fedasync", local="moon", updates=16, gate=False)  # as the golden federation
    d = driver(made, FakeGrid(Clock(1e9 + 40.0), nodes(made, tmp_path / "homes"), run="2"), folder)
    assert d.engine.updates == 7
    assert finished(d, d.grid) == "updates"
