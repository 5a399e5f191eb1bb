"""arrivals.csv is written from the log in constant memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.core.errors import DamagedFile
from tarry.delays.measured import read_trace
from tarry.record.rows import Log, read_events
from tarry.record.run_folder import RunFolder
from tarry.runs.arrivals import write_arrivals


def handed_out(client: int, ticket: int, visit: int) -> dict[str, Any]:
    return {
        "kind": "hand_out",
        "time": float(ticket),
        "version": 0,
        "updates": 0,
        "client": client,
        "ticket": ticket,
        "visit": visit,
        "seconds": 1.5,
    }


def ended(kind: str, client: int, ticket: int, visit: int) -> dict[str, Any]:
    row = handed_out(client, ticket, visit)
    return {**row, "kind": kind, "seconds": None}


def write_log(folder: RunFolder, rows: list[dict[str, Any]]) -> None:
    log = Log(folder.events)
    for row in rows:
        log.append(row)
    log.close()


def test_every_visit_is_in_the_order_of_hand_outs_with_its_fate(tmp_path: Path) -> None:
    result = tarry.run("fedasync", "digits", clients=4, time=2000.0, failure_rate=0.3, out=tmp_path / "run")
    rows = list(read_events(tmp_path / "run" / "events.jsonl"))
    visits = [(r["client"], r["visit"]) for r in rows if r["kind"] == "hand_out"]
    lost = {(r["client"], r["visit"]) for r in rows if r["kind"] == "lost"}
    assert result.lost == len(lost) > 3
    trace = read_trace(tmp_path / "run" / "arrivals.csv")
    assert [(r.client, r.visit) for r in trace] == visits
    assert {(r.client, r.visit) for r in trace if r.fate == "lost"} == lost


def test_memory_does_not_grow_with_the_number_of_visits(tmp_path: Path) -> None:
    def peak(visits: int) -> int:
        folder = RunFolder(tmp_path / str(visits))
        folder.path.mkdir()
        rows = [r for k in range(visits) for r in (handed_out(0, k, k), ended("lost", 0, k, k))]
        write_log(folder, rows)
        tracemalloc.start()
        write_arrivals(folder, any_lost=True)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(20_000) - peak(2_000) < 100_000, "18,000 visits more, of which each may take a byte or two"


@pytest.mark.parametrize(
    "rows",
    [
        [ended("lost", 0, 0, 0)],
        [handed_out(0, 0, 0), ended("lost", 0, 10**18, 0)],
        [handed_out(0, 0, 0), ended("lost", 0, -1, 0)],
        [{**handed_out(0, 0, 0), "seconds": None}],
    ],
)
def test_a_log_that_is_no_run_is_an_error(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    folder = RunFolder(tmp_path)
    write_log(folder, rows)
    with pytest.raises(DamagedFile, match=r"events\.jsonl: "):
        write_arrivals(folder, any_lost=True)
