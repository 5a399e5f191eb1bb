from __future__ import annotations

import errno
import json
import os
import zlib
from math import inf, nan
from pathlib import Path

import pytest
import torch

from tarry.core.errors import DamagedFile, StorageError
from tarry.core.events import Event
from tarry.record.rows import Log, Mark, Recorder, end_of_rows, read_events, read_rows

W = torch.zeros(2)


def event(kind: str = "arrival", time: float = 1.5, **what: object) -> Event:
    return Event(kind, time, 3, 7, W, **what)  # type: ignore[arg-type]


def written(path: Path, *events: Event, at: Mark = Mark()) -> Mark:  # noqa: B008 - a constant
    recorder = Recorder(path, at)
    for e in events:
        recorder(e)
    end = recorder.sync()
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
    assert at.nbytes == path.stat().st_size
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
    at = recorder.sync()
    assert path.stat().st_size == at.nbytes > 0
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
    with pytest.raises(DamagedFile, match=r"events.jsonl, row 2: it is not what was written"):
        list(read_rows(path))


def test_an_empty_log_has_no_rows(tmp_path):
    path = tmp_path / "events.jsonl"
    path.touch()
    assert list(read_rows(path)) == []


def test_a_log_shorter_than_its_position_is_damage_not_something_to_fill_up(tmp_path):
    path = tmp_path / "events.jsonl"
    at = written(path, event(client=0), event(client=1))
    path.write_bytes(path.read_bytes()[: at.nbytes // 2])
    with pytest.raises(DamagedFile, match=r"events.jsonl"):
        Recorder(path, at).close()
    assert path.stat().st_size == at.nbytes // 2


def test_every_flipped_bit_of_a_log_is_found_and_its_row_is_named(tmp_path):
    path = tmp_path / "events.jsonl"
    mark = written(path, *(event(client=c, loss=0.1 * c) for c in range(4)))
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        row = whole[:at].count(b"\n") + 1
        with pytest.raises(
            DamagedFile, match=rf"events.jsonl.*row {row}|events.jsonl: the row after byte \d+"
        ) as found:
            Recorder(path, mark).close()
        assert "another --out" in str(found.value)
        assert path.read_bytes() == bytes(damaged), "a damaged log is not cut off"
        if damaged[-1:] == b"\n":  # else the last row counts as torn by a kill
            with pytest.raises(DamagedFile, match=rf"row {row}"):
                list(read_rows(path))


def test_a_row_that_is_missing_doubled_or_moved_is_found(tmp_path):
    path = tmp_path / "events.jsonl"
    written(path, *(event(client=c) for c in range(4)))
    a, b, c, d = path.read_bytes().splitlines(keepends=True)
    for rows, bad in (([a, c, d], 2), ([a, b, b, c, d], 3), ([a, c, b, d], 2), ([b, a, c, d], 1)):
        path.write_bytes(b"".join(rows))
        with pytest.raises(DamagedFile, match=f"row {bad}: it is not what was written"):
            list(read_rows(path))


def test_a_log_of_another_run_with_sound_rows_does_not_fit_a_mark(tmp_path):
    path = tmp_path / "events.jsonl"
    mark = written(path, event(client=1), event(client=2))
    written(path, event(client=1), event(client=3))
    assert path.stat().st_size == mark.nbytes
    with pytest.raises(DamagedFile, match="belong to another run"):
        Recorder(path, mark)


def test_the_mark_after_the_last_row_continues_the_log(tmp_path):
    path = tmp_path / "rows.jsonl"
    log = Log(path, buffered=False)
    for n in range(3):
        log.append({"n": n})
        assert [r["n"] for r in read_rows(path)] == [*range(n + 1)], "rows without a buffer are on file at once"
    mark = log.sync()
    log.close()
    with path.open("ab") as f:
        f.write(b'{"n":3,"cr')
    assert end_of_rows(path) == mark
    again = Log(path, end_of_rows(path))
    again.append({"n": 4})
    again.close()
    assert [r["n"] for r in read_rows(path)] == [0, 1, 2, 4]
    assert [r["n"] for r in read_rows(path, mark)] == [4]


@pytest.mark.parametrize(
    "row",
    [{"time": 1.0}, {"kind": 3, "time": 1.0}, {"kind": "arrival", "time": "soon"}, {"kind": "lost", "time": None}],
)
def test_a_forged_row_of_another_type_is_no_event(tmp_path, row):
    path = tmp_path / "events.jsonl"
    log = Log(path)
    log.append({"version": 0, "updates": 0, **row})
    log.close()
    with pytest.raises(DamagedFile, match=r"events.jsonl, row 1: not an event"):
        list(read_events(path))


def test_a_pipe_and_a_device_are_no_logs(tmp_path):
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(DamagedFile, match="not a regular file"):
        list(read_rows(tmp_path / "events.jsonl"))
    with pytest.raises(DamagedFile, match="not a regular file"):
        list(read_rows(Path("/dev/zero")))


def test_a_nested_row_is_damage_not_a_crash(tmp_path):
    path = tmp_path / "events.jsonl"
    body = b'{"a":' + b"[" * 100_000 + b"]" * 100_000
    path.write_bytes(body + b',"crc":%d}\n' % zlib.crc32(body))
    with pytest.raises(DamagedFile, match="row 1: not a row"):
        list(read_rows(path))


def test_a_log_that_cannot_be_closed_is_one_error(tmp_path, monkeypatch):
    log, close = Log(tmp_path / "log"), os.close
    log.append({"kind": "x"})

    def fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "")

    monkeypatch.setattr(os, "close", fail)
    with pytest.raises(StorageError, match=r"log: it cannot be written \(Input/output error\); check the disk"):
        log.close()
    log.close()
