from __future__ import annotations

import gzip
import lzma
import random
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import tarry
from tarry.core import rng
from tarry.core.errors import BadInput
from tarry.core.rng import Stream
from tarry.delays.base import ClientPopulation, delays
from tarry.delays.measured import TraceRow, empirical, read_trace, trace, write_trace
from tests.helpers.by_flags import build_by_flags

ROUNDS = {"37": [9.5, 11.25, 8.0], "15": [97.5, 100.0], "2": [700.0, 800.0, 650.0, 905.5]}


def a_population(n: int, seed: int = 7) -> ClientPopulation:
    return ClientPopulation(n, [100] * n, 1000, seed)


def rounds_file(folder: Path) -> str:
    """As measured: the clients' rounds are mixed, the columns more than are needed."""
    lines = [
        f"1,{i},{wall}.885,{client},3.8,{rounds[i]}"
        for wall, i in enumerate(range(4))
        for client, rounds in ROUNDS.items()
        if i < len(rounds)
    ]
    path = folder / "rounds.csv"
    path.write_text("gateway,gateway_round,wall_time_s,client,comp_delay_s,round_delay_s\n" + "\n".join(lines) + "\n")
    return str(path)


def test_recorded_order_runs_through_the_rounds_of_one_measured_client_and_wraps(tmp_path):
    delay = empirical(path=rounds_file(tmp_path), order="recorded")(a_population(3))
    lived = [[delay(client, visit) for visit in range(9)] for client in range(3)]
    assert sorted(lived) == sorted((rounds * 5)[:9] for rounds in ROUNDS.values())


def test_random_order_draws_from_the_rounds_of_one_measured_client(tmp_path):
    delay = empirical(path=rounds_file(tmp_path))(a_population(3))
    own = []
    for client in range(3):
        lived = [delay(client, visit) for visit in range(600)]
        rounds = next(r for r in ROUNDS.values() if set(r) == set(lived))
        own.append(rounds)
        assert all(lived.count(value) == pytest.approx(600 / len(rounds), abs=60) for value in rounds)
        assert lived[:60] == [rounds[rng.below(rng.key(7, Stream.DELAY, client, v), len(rounds))] for v in range(60)]
    assert sorted(own) == sorted(ROUNDS.values())


def test_more_clients_than_measured_ones_share_them(tmp_path):
    delay = empirical(path=rounds_file(tmp_path), order="recorded")(a_population(300))
    first = [delay(client, 0) for client in range(300)]
    assert all(first.count(rounds[0]) == pytest.approx(100, abs=40) for rounds in ROUNDS.values())
    assert len({first.count(rounds[0]) for rounds in ROUNDS.values()}) > 1


def test_empirical_is_a_function_of_client_and_visit_and_seed(tmp_path):
    path = rounds_file(tmp_path)
    pairs = [(c, v) for c in range(5) for v in range(20)]
    once = {pair: empirical(path=path)(a_population(5))(*pair) for pair in pairs}
    random.Random(2).shuffle(pairs)
    again, other = empirical(path=path)(a_population(5)), empirical(path=path)(a_population(5, seed=8))
    assert {pair: again(*pair) for pair in pairs} == once
    assert {pair: other(*pair) for pair in pairs} != once


def test_another_column_may_hold_the_durations_or_the_clients(tmp_path):
    path = rounds_file(tmp_path)
    assert empirical(path=path, column="comp_delay_s")(a_population(2))(1, 5) == 3.8
    delay = empirical(path=path, client_column="gateway", order="recorded")(a_population(1))
    assert [delay(0, v) for v in range(4)] == [9.5, 97.5, 700.0, 11.25]


@pytest.mark.parametrize(("unit", "seconds"), [("s", 2.5), ("ms", 0.0025), ("us", 2.5e-6), ("min", 150), ("h", 9000)])
def test_durations_may_be_in_another_unit(tmp_path, unit, seconds):
    path = tmp_path / "rounds.csv"
    path.write_text("client,round_delay_s\n1,2.5\n")
    assert build_by_flags(delays, "empirical", path=str(path), unit=unit)(a_population(1))(0, 0) == pytest.approx(
        seconds, rel=1e-15
    )


def test_lines_with_a_blank_duration_are_skipped_and_counted(tmp_path):
    path = tmp_path / "rounds.csv"
    path.write_text("client,round_delay_s\na,10\na,\nb,N/A\na,20\nb,nan\n")
    delay = empirical(path=str(path), order="recorded")(a_population(2))
    assert [delay(c, v) for c in (0, 1) for v in (0, 1)] == [10, 20, 10, 20], "client b has no round, and is not dealt"
    assert delay.notices == (f"--delay.path {path}: 3 lines with a blank 'round_delay_s' are skipped",)
    result = tarry.run("fedasync", "digits", delay={"name": "empirical", "path": str(path)}, updates=2)
    assert any("3 lines with a blank 'round_delay_s' are skipped" in warning for warning in result.warnings)


def test_a_column_of_blanks_is_refused(tmp_path):
    path = tmp_path / "rounds.csv"
    path.write_text("client,round_delay_s\na,\nb,\n")
    with pytest.raises(BadInput, match="all 2 durations in column 'round_delay_s' are blank"):
        empirical(path=str(path))


def test_a_measured_file_may_be_packed_or_begin_with_a_mark(tmp_path):
    packed, zipped, marked = tmp_path / "rounds.csv.xz", tmp_path / "rounds.csv.gz", tmp_path / "marked.csv"
    packed.write_bytes(lzma.compress(b"client,round_delay_s\n1,2.5\n"))
    zipped.write_bytes(gzip.compress(b"client,round_delay_s\n1,2.5\n"))
    marked.write_bytes(b"\xef\xbb\xbfclient,round_delay_s\r\n1,2.5\r\n\r\n")
    columns = tmp_path / "rounds.parquet"
    parquet.write_table(pyarrow.table({"client": [1, 1], "round_delay_s": [2.5, None]}), columns)
    for path in (packed, zipped, marked, columns):
        assert empirical(path=str(path))(a_population(1))(0, 0) == 2.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("client,round_delay_s\n1,2.5\n1,soon\n", "--delay.path {path}: line 3: 'soon' is not a number"),
        ("client,round_delay_s\n1,-2.5\n", "--delay.path {path}: line 2: -2.5: must be finite and above 0"),
        ("client,round_delay_s\n1,0\n", "--delay.path {path}: line 2: 0: must be finite"),
        ("client,round_delay_s\n1,inf\n", "--delay.path {path}: line 2: inf: must be finite"),
        ("client,round_delay_s\n1\n", "--delay.path {path}: line 2: 1 cells where the first line has 2"),
        ("client,round_delay_s\n", "--delay.path {path}: has no lines below its first"),
        ("", "--delay.path {path}: is empty"),
        (
            "client,round_delays_s\n1,2\n",
            "--delay.column round_delay_s: line 1 of {path} has no column 'round_delay_s'. Did you mean 'round_del",
        ),
        ("id,round_delay_s\n1,2\n", "--delay.client_column client: line 1 of {path} has no column 'client'."),
    ],
)
def test_a_malformed_measured_file_is_refused_with_flag_file_and_line(tmp_path, text, problem):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadInput) as rejected:
        build_by_flags(delays, "empirical", path=str(path))
    assert str(rejected.value).startswith(problem.format(path=path))
    assert len(rejected.value.problems) == 1


def test_one_column_cannot_hold_both_the_durations_and_the_clients(tmp_path):
    with pytest.raises(BadInput, match=r"--delay\.column client: is the column of clients already"):
        empirical(path=rounds_file(tmp_path), column="client")


@pytest.mark.parametrize("name", ["empirical", "trace"])
def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path, name):
    noise = tmp_path / "noise.csv"
    noise.write_bytes(b"\xff\xfe\x00\x81")
    torn = tmp_path / "torn.csv.xz"
    torn.write_bytes(lzma.compress(b"client,round_delay_s\n1,2.5\n")[:30])
    for path, problem in [
        (tmp_path / "none.csv", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (noise, "is not a CSV file"),
        (torn, "is torn, or not packed as its name says"),
    ]:
        with pytest.raises(BadInput) as rejected:
            build_by_flags(delays, name, path=str(path))
        assert str(rejected.value).startswith(f"--delay.path {path}: {problem}")


DURATION = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)


@given(st.lists(st.tuples(DURATION, DURATION, st.sampled_from(["done", "lost"])), min_size=1, max_size=30))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_a_trace_comes_back_bit_for_bit(tmp_path_factory, visits):
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    rows = [TraceRow(i % 3, i // 3, *visit) for i, visit in enumerate(visits)]
    write_trace(path, rows)
    assert read_trace(path) == rows
    n = min(3, len(rows))
    replay = trace(path=str(path))(a_population(n))
    for row in rows:
        assert replay(row.client, row.visit) == row.seconds
        assert replay.lost(row.client, row.visit) == (row.fate == "lost")


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_packed_trace_is_packed_and_the_same_every_time(tmp_path, ending):
    rows = [TraceRow(0, 0, 0.0, 7.5, "done")]
    paths = [tmp_path / f"{i}.csv{ending}" for i in range(2)]
    for path in paths:
        write_trace(path, rows)
        assert read_trace(path) == rows
        assert b"client" not in path.read_bytes()[:6]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_trace_is_plain_text_with_named_columns_even_from_numpy_numbers(tmp_path):
    path = tmp_path / "trace.csv"
    write_trace(path, [(np.int64(0), 0, np.float64(0.0), np.float64(0.1) + np.float64(0.2), "done")])
    assert path.read_text() == "client,visit,start,seconds,fate\n0,0,0.0,0.30000000000000004,done\n"


RECORD = [(1, 0, 0.0, 7.5, "done"), (0, 0, 0.0, 9.0, "lost"), (1, 1, 7.5, 3.25, "lost"), (0, 1, 9.0, 4.0, "done")]


def recorded(folder: Path, rows: list[tuple[int, int, float, float, str]], name: str = "trace.csv") -> str:
    write_trace(folder / name, rows)
    return str(folder / name)


def test_past_its_record_a_client_leaves(tmp_path):
    replay = trace(path=recorded(tmp_path, RECORD))(a_population(2))
    assert [replay(1, v) for v in range(4)] == [7.5, 3.25, None, None]
    assert [replay.lost(1, v) for v in range(4)] == [False, True, False, False]


def test_past_its_record_a_client_starts_again_when_asked(tmp_path):
    path = recorded(tmp_path, [*RECORD, (0, 2, 13.0, 1.0, "done")], "trace.csv.xz")
    replay = delays.build("trace", path=path, end="repeat")(a_population(2))
    assert [replay(0, v) for v in range(5)] == [9.0, 4.0, 1.0, 9.0, 4.0]
    assert [replay.lost(0, v) for v in range(5)] == [True, False, False, True, False]
    assert [replay(1, v) for v in range(3)] == [7.5, 3.25, 7.5]


def test_a_trace_that_names_a_client_this_run_does_not_have_is_refused(tmp_path):
    path = recorded(tmp_path, RECORD)
    with pytest.raises(BadInput) as rejected:
        trace(path=path)(a_population(1))
    assert str(rejected.value) == f"--delay.path {path}: names client 1; this run has clients 0 to 0"


@pytest.mark.parametrize("end", ["leave", "repeat"])
def test_a_client_that_a_trace_does_not_name_takes_no_part(tmp_path, end):
    path = recorded(tmp_path, [(0, 0, 0.0, 1.0, "done"), (2, 0, 0.0, 3.0, "done")])
    replay = trace(path=path, end=end)(a_population(4))
    assert [replay(c, 0) for c in range(4)] == [1.0, None, 3.0, None]
    assert not replay.lost(1, 0)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a,0,0.0,1.0,done", "line 2: 'a' is not a whole number from 0 on"),
        ("0,-1,0.0,1.0,done", "line 2: '-1' is not a whole number from 0 on"),
        ("0,0,-1.0,1.0,done", "line 2: start -1.0: must be finite and not below 0"),
        ("0,0,nan,1.0,done", "line 2: start nan: must be finite and not below 0"),
        ("0,0,0.0,-1.0,done", "line 2: -1.0: must be finite and above 0"),
        ("0,0,0.0,x,done", "line 2: 'x' is not a number"),
        ("0,1,0.0,1.0,done", "client 0 has no visit 0: a client's visits must count up from 0"),
        ("0,0,0.0,1.0,done\n0,0,1.0,1.0,done", "client 0 has visit 0 twice: a client's visits must count up from 0"),
    ],
)
def test_a_malformed_trace_is_refused_with_flag_file_and_line(tmp_path, row, problem):
    path = tmp_path / "bad.csv"
    path.write_text(f"client,visit,start,seconds,fate\n{row}\n")
    with pytest.raises(BadInput) as rejected:
        trace(path=str(path))
    assert str(rejected.value).startswith(f"--delay.path {path}: ")
    assert str(rejected.value).endswith(problem)


def test_a_trace_without_its_columns_is_refused_naming_each(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("client,visit,start,second\n0,0,0.0,1.0\n")
    with pytest.raises(BadInput) as rejected:
        trace(path=str(path))
    assert len(rejected.value.problems) == 2
    assert "has no column 'seconds'. Did you mean 'second'?" in rejected.value.problems[0]
    assert "has no column 'fate'" in rejected.value.problems[1]


def test_a_round_is_scaled_by_its_computing_time_and_the_rest_of_it(tmp_path):
    """OrthoFL, App. D.4: computing by the work here over the measured work, communication by the model's bytes."""
    path = rounds_file(tmp_path)
    population = ClientPopulation(3, [100, 200, 50], 4000, 7, epochs=5)
    plain = empirical(path=path, order="recorded")(population)
    both = empirical(
        path=path, order="recorded", compute_column="comp_delay_s", examples=250, cost=3.0, model_bytes=1000
    )(population)
    for client, n in enumerate(population.samples):
        work, traffic = 3.0 * 5 * n / 250, 4.0
        for visit in range(4):
            assert both(client, visit) == pytest.approx(3.8 * work + (plain(client, visit) - 3.8) * traffic)
    as_measured = empirical(path=path, order="recorded", compute_column="comp_delay_s")(population)
    assert as_measured(1, 1) == pytest.approx(plain(1, 1))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"examples": 250}, "--delay.compute_column"),
        ({"cost": 2.0}, "--delay.compute_column"),
        ({"compute_column": "comp_delay_s", "model_bytes": 0}, "--delay.model_bytes 0"),
        ({"compute_column": "wall_time_s"}, r"line \d+.*computing 0.885"),
    ],
)
def test_scaling_that_cannot_be_done_is_rejected(tmp_path, params, message):
    path = Path(rounds_file(tmp_path))
    path.write_text(path.read_text().replace("700.0", "0.5"))
    with pytest.raises(BadInput, match=message):
        build_by_flags(delays, "empirical", path=str(path), **params)
