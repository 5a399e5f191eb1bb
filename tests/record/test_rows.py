from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path

import pytest
import torch

from tarry.core.errors import DamagedFile
from tarry.core.events import Event
from tarry.record.rows import Recorder, read_rows

W = torch.zeros(2)


def event(kind: str = "arrival", time: float = 1.5, **what: object) -> Event:
    return Event(kind, time, 3, 7, W, **what)  # type: ignore[arg-type]


def written(path: Path, *events: Event, at: int = 0) -> int:
    recorder = Recorder(path, at=at)
    for e in events:
        recorder(e)
    end = recorder.position()
    recorder.close()
    return end


def test_a_row_says_what_applies_and_leaves_out_the_rest(tmp_path):
    path = tmp_path / "events.jsonl"
    written(
        path,
        event("hand_out", 0.0, client=0, ticket=0, visit=0, seconds=2.5),
        event(client=4, ticket=11, visit=2, staleness=0, stepped=True, loss=0.5),
        event("evaluate", accuracy=0.0, loss=2.0),
        event("leave", client=3),
    )
    assert list(read_rows(path)) == [
        {
            "kind": "hand_out",
            "time": 0.0,
            "version": 3,
            "updates": 7,
            "client": 0,
            "ticket": 0,
            "visit": 0,
            "stepped": False,
            "seconds": 2.5,
        },
        {
            "kind": "arrival",
            "time": 1.5,
            "version": 3,
            "updates": 7,
            "client": 4,
            "ticket": 11,
            "visit": 2,
            "staleness": 0,
            "stepped": True,
            "loss": 0.5,
        },
        {"kind": "evaluate", "time": 1.5, "version": 3, "updates": 7, "stepped": False, "loss": 2.0, "accuracy": 0.0},
        {"kind": "leave", "time": 1.5, "version": 3, "updates": 7, "client": 3, "stepped": False},
    ]


def test_rows_are_one_line_each_of_strict_json(tmp_path):
    path = tmp_path / "events.jsonl"
    written(path, event(loss=nan), event("evaluate", loss=inf, accuracy=nan))
    lines = path.read_text().splitlines()
    assert len(lines) == 2

    def never(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    rows = [json.loads(line, parse_constant=never) for line in lines]
    assert rows[0]["loss"] is None
    assert rows[1]["loss"] is None
    assert rows[1]["accuracy"] is None


def test_numbers_read_back_bit_for_bit(tmp_path):
    path = tmp_path / "events.jsonl"
    times = [0.1, 1 / 3, 1e-17, 123456789.123456789, 2.0**60]
    written(path, *(event(time=t) for t in times))
    assert [r["time"] for r in read_rows(path)] == times


def test_the_log_goes_on_from_a_position_and_what_came_after_it_is_cut_off(tmp_path):
    path = tmp_path / "events.jsonl"
    at = written(path, event(client=0), event(client=1))
    assert at == path.stat().st_size
    written(path, event(client=2), event(client=3), at=at)
    assert [r["client"] for r in read_rows(path)] == [0, 1, 2, 3]
    written(path, event(client=9), at=at)
    assert [r["client"] for r in read_rows(path)] == [0, 1, 9]


def test_a_new_log_over_an_old_one_begins_empty(tmp_path):
    path = tmp_path / "events.jsonl"
    written(path, event(client=0), event(client=1))
    written(path, event(client=5))
    assert [r["client"] for r in read_rows(path)] == [5]


def test_a_position_means_that_the_rows_so_far_are_on_disk(tmp_path):
    path = tmp_path / "events.jsonl"
    recorder = Recorder(path)
    recorder(event(client=0))
    at = recorder.position()
    assert path.stat().st_size == at > 0
    assert len(list(read_rows(path))) == 1
    recorder.close()


def test_a_last_line_torn_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    written(path, event(client=0), event(client=1), event(client=2))
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        assert [r["client"] for r in read_rows(path)] == [0, 1]


def test_a_line_torn_in_the_middle_is_damage_and_named(tmp_path):
    path = tmp_path / "events.jsonl"
    written(path, event(client=0), event(client=1), event(client=2))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:10], lines[2]]) + "\n")
    with pytest.raises(DamagedFile, match=r"events.jsonl, line 2: not a row"):
        list(read_rows(path))


def test_an_empty_log_has_no_rows(tmp_path):
    path = tmp_path / "events.jsonl"
    path.touch()
    assert list(read_rows(path)) == []


def test_a_log_shorter_than_its_position_is_damage_not_something_to_fill_up(tmp_path):
    path = tmp_path / "events.jsonl"
    at = written(path, event(client=0), event(client=1))
    path.write_bytes(path.read_bytes()[: at // 2])
    with pytest.raises(DamagedFile, match=r"events.jsonl"):
        Recorder(path, at=at).close()
    assert path.stat().st_size == at // 2
