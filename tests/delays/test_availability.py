from __future__ import annotations

import lzma
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core.errors import BadInput
from tarry.delays.availability import Availability

INF = math.inf


def test_a_window_holds_its_start_and_not_its_end():
    availability = Availability({0: [(10, 20), (30, INF)]})
    before_10, before_20 = math.nextafter(10, 0), math.nextafter(20, 0)
    inside = {0: False, before_10: False, 10: True, before_20: True, 20: False, 29: False, 30: True, 1e12: True}
    assert {time: availability.here(0, time) for time in inside} == inside


def test_a_client_without_an_entry_is_always_there_and_one_with_an_empty_entry_never():
    availability = Availability({1: []})
    assert availability.here(0, 0)
    assert availability.until(0, 5) == INF
    assert not availability.here(1, 0)
    assert not availability.here(1, 1e9)
    assert availability.absent_at_start == [1]
    assert list(availability.changes()) == []


def test_until_is_the_end_of_the_window_that_holds_the_time():
    availability = Availability({0: [(0, 20), (30, INF)]})
    assert availability.until(0, 0) == 20
    assert availability.until(0, 19.5) == 20
    assert availability.until(0, 31) == INF


def test_until_is_the_time_itself_when_the_client_is_away():
    availability = Availability({0: [(10, 20)]})
    assert [availability.until(0, time) for time in (3, 20, 25)] == [3, 20, 25]


def test_windows_are_sorted_merged_and_dropped_when_empty():
    availability = Availability({0: [(30, 40), (5, 5), (0, 10), (8, 12), (12, 15), (9, 10)]})
    assert list(availability.changes()) == [(15, 0, False), (30, 0, True), (40, 0, False)]
    assert availability.until(0, 0) == 15


def test_changes_come_by_time_then_leaving_before_arriving_then_client():
    availability = Availability({5: [(0, 10), (20, INF)], 1: [(10, 20)], 3: [(0, 10)], 2: [(10, INF)]})
    assert list(availability.changes()) == [
        (10, 3, False),
        (10, 5, False),
        (10, 1, True),
        (10, 2, True),
        (20, 1, False),
        (20, 5, True),
    ]
    assert availability.absent_at_start == [1, 2]


@given(
    st.dictionaries(
        st.integers(0, 5), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=6), max_size=4
    )
)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_presence_agrees_with_looking_at_every_window(lengths):
    windows = {client: [(a, a + b) for a, b in entry] for client, entry in lengths.items()}
    availability = Availability(windows)
    now = {client: client not in availability.absent_at_start for client in range(6)}
    moves = list(availability.changes())
    for time in range(30):
        for _, client, arrives in (move for move in moves if move[0] == time):
            assert now[client] != arrives
            now[client] = arrives
        for client in range(6):
            naive = client not in windows or any(a <= time < b for a, b in windows[client])
            assert availability.here(client, time) == naive == now[client]
            until = availability.until(client, time)
            if naive and client in windows:
                assert all(any(a <= t < b for a, b in windows[client]) for t in range(time, int(until)))
                assert not availability.here(client, until)


@pytest.mark.parametrize("window", [(-1, 5), (5, 4), (math.nan, 4), (0, math.nan), (INF, INF)])
def test_an_impossible_window_is_refused_naming_the_client(window):
    with pytest.raises(BadInput) as rejected:
        Availability({0: [(0, 1)], 3: [window]})
    assert str(rejected.value).startswith(
        f"--availability: client 3, window {window[0]} to {window[1]}: must begin at 0"
    )


def written(folder: Path, text: str, name: str = "availability.csv") -> Path:
    path = folder / name
    path.write_bytes(lzma.compress(text.encode()) if name.endswith(".xz") else text.encode())
    return path


PLAIN = "client,start,end\n2,10,20\n0,0,inf\n2,30,40\n1,7,7\n"


def test_clients_of_a_plain_file_are_those_of_the_run_and_the_others_are_always_there(tmp_path):
    availability = Availability.read(written(tmp_path, PLAIN), 4)
    assert list(availability.changes()) == [(10, 2, True), (20, 2, False), (30, 2, True), (40, 2, False)]
    assert availability.absent_at_start == [1, 2]
    assert availability.until(0, 100) == INF
    assert not availability.here(1, 7)
    assert availability.here(3, 0)


@pytest.mark.parametrize("name", ["4", "-1", "phone", "1.0"])
def test_a_plain_file_that_names_a_client_the_run_does_not_have_is_refused(tmp_path, name):
    path = written(tmp_path, f"client,start,end\n{name},0,1\n")
    with pytest.raises(BadInput, match=f"line 2: client {name}: must be a client of this run, 0 to 3"):
        Availability.read(path, 4)


FLASH = """client,trace_start_s,trace_end_s,ready_start_s,ready_end_s
681,2410196,2928596,2413687,2413697
681,2410196,2928596,2430765,2430765
12,100,900,100,250
"""


PHONES = """client,trace_start_s,trace_end_s,ready_start_s,ready_end_s
b,0,99,10,20
a,5,99,5,inf
b,0,99,30,40
c,0,99,7,7
"""


def test_flash_phones_are_dealt_in_the_order_of_their_first_line(tmp_path):
    availability = Availability.read(written(tmp_path, PHONES), 3)
    assert list(availability.changes()) == [(10, 0, True), (20, 0, False), (30, 0, True), (40, 0, False)]
    assert availability.absent_at_start == [0, 2]


def test_more_clients_than_phones_go_round_again(tmp_path):
    availability = Availability.read(written(tmp_path, PHONES), 7)
    assert [c for c in range(7) if availability.here(c, 15)] == [0, 1, 3, 4, 6]
    assert list(availability.changes()) == [
        (time, client, arrives)
        for time, arrives in [(10, True), (20, False), (30, True), (40, False)]
        for client in (0, 3, 6)
    ]


def test_fewer_clients_than_phones_take_the_first_ones(tmp_path):
    availability = Availability.read(written(tmp_path, PHONES), 1)
    assert len(list(availability.changes())) == 4
    assert availability.absent_at_start == [0]


@pytest.mark.parametrize("name", ["flash.csv", "flash.csv.xz"])
def test_flash_windows_count_from_the_start_of_each_trace(tmp_path, name):
    availability = Availability.read(written(tmp_path, FLASH, name), 2)
    assert list(availability.changes()) == [(150, 1, False), (3491, 0, True), (3501, 0, False)]
    assert availability.absent_at_start == [0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("client,start,end\n0,0,1\n0,later,9\n", "line 3: 'later' is not a number"),
        ("client,start,end\na,9,1\n", "line 2: window 9.0 to 1.0: must begin at 0 or later"),
        ("client,start,end\na,-9,1\n", "line 2: window -9.0 to 1.0: must begin at 0 or later"),
        ("client,start,end\na,nan,1\n", "line 2: window nan to 1.0: must begin"),
        (
            "client,trace_start_s,ready_start_s,ready_end_s\na,50,40,60\n",
            "line 2: window -10.0 to 10.0: must begin at 0 or later",
        ),
        ("client,start\na,0\n", "line 1 of {path} has no column 'end'."),
        ("client,start,end\na,0\n", "line 2: 2 cells where the first line has 3"),
        ("client,start,end\n", "has no lines below its first"),
        ("", "is empty"),
    ],
)
def test_a_malformed_file_is_refused_with_flag_file_and_line(tmp_path, text, problem):
    path = written(tmp_path, text)
    with pytest.raises(BadInput) as rejected:
        Availability.read(path, 3)
    assert str(rejected.value).startswith(f"--availability {path}: " + problem.format(path=path))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"--availability .*none\.csv: cannot be read: No such file"):
        Availability.read(tmp_path / "none.csv", 3)
