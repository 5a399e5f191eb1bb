"""Rows by client, in memory or in a file: the same rows, and they come back after a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tarry
from tarry.core.client_table import ClientScalars, ClientTable, SpillPolicy
from tarry.core.errors import DamagedFile
from tarry.core.state_tree import MemoryMeter, copy_tree, tables, tensors
from tarry.record import checkpoint
from tests.helpers.interrupted import interrupted_run


def row(value: float, n: int = 3) -> Tensor:
    return torch.full((n,), value)


def rows(table: ClientTable) -> dict[int, list[float]]:
    return {client: table[client].tolist() for client in table}


def housed(room: SpillPolicy, name: str = "t") -> ClientTable:
    table = ClientTable()
    table.attach(room, name)
    return table


@pytest.fixture(params=["memory", "temporary file", "file"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ClientTable:
    rooms = {
        "memory": SpillPolicy(),
        "temporary file": SpillPolicy(limit=20),
        "file": SpillPolicy(limit=20, folder=tmp_path),
    }
    return housed(rooms[request.param])


def test_rows_are_kept_by_client_in_the_order_they_first_came(table: ClientTable) -> None:
    for client, value in [(7, 1.0), (2, 2.0), (7, 3.0), (5, 4.0)]:
        table.put(client, row(value))
    assert rows(table) == {7: [3.0] * 3, 2: [2.0] * 3, 5: [4.0] * 3}
    assert list(table) == [7, 2, 5]
    assert len(table) == 3
    assert table.nbytes == 3 * 12
    assert 2 in table
    assert table.get(3) is None
    with pytest.raises(KeyError):
        table[3]
    table.pop(2)
    table.pop(2)
    assert list(table) == [7, 5]
    assert table.nbytes == 2 * 12
    table.put(2, row(9.0))
    assert rows(table) == {7: [3.0] * 3, 5: [4.0] * 3, 2: [9.0] * 3}


def test_what_is_written_to_a_row_one_was_given_does_not_reach_the_file(tmp_path: Path) -> None:
    table = housed(SpillPolicy(limit=0, folder=tmp_path))
    table.put(0, row(1.0))
    table[0].fill_(5.0)
    assert table[0].tolist() == [1.0] * 3


def test_memory_is_used_up_to_the_limit_and_a_file_beyond_it(tmp_path: Path) -> None:
    table = housed(SpillPolicy(limit=24, folder=tmp_path), "mine")
    table.put(0, row(1.0))
    table.put(1, row(2.0))
    table.put(0, row(3.0))
    assert not (tmp_path / "mine.rows").exists()
    table.put(2, row(4.0))
    assert (tmp_path / "mine.rows").exists()
    assert rows(table) == {0: [3.0] * 3, 1: [2.0] * 3, 2: [4.0] * 3}
    table.close()
    assert not (tmp_path / "mine.rows").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(), (5,), (3, 2000)])
def test_any_shape_and_type_comes_back_from_a_file(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    g, table = torch.Generator().manual_seed(0), housed(SpillPolicy(limit=0))
    given = {c: torch.randint(0, 1000, shape, generator=g).to(dtype) for c in range(4)}
    for client, value in given.items():
        table.put(client, value)
    for client, value in given.items():
        assert torch.equal(table[client], value)
        assert table[client].dtype == dtype


@pytest.mark.parametrize("limit", [0, 1e9])
def test_a_record_stays_true_while_the_table_goes_on(tmp_path: Path, limit: float) -> None:
    table = housed(SpillPolicy(limit, tmp_path))
    records: list[tuple[Path, dict[int, list[float]]]] = []
    for step in range(12):
        table.put(step % 5, row(float(step)))
        if step % 2:
            path = checkpoint.Checkpoints(tmp_path / f"{step}").save(1, {"t": copy_tree(table)})
            records.append((path, rows(table)))
    for path, before in records[-2:]:  # as many as a run keeps
        again = checkpoint.load(path)["t"]
        again.attach(SpillPolicy(limit, tmp_path), "t")
        assert rows(again) == before
        assert again.nbytes == table.nbytes


def test_places_are_used_again_once_no_record_speaks_of_them(tmp_path: Path) -> None:
    table = housed(SpillPolicy(0, tmp_path))
    for step in range(40):
        table.put(step % 2, row(float(step)))
        table.save()
    assert os.path.getsize(tmp_path / "t.rows") <= 6 * 65536
    assert rows(table) == {0: [38.0] * 3, 1: [39.0] * 3}


def test_the_place_of_a_row_that_is_forgotten_is_used_again(tmp_path: Path) -> None:
    table = housed(SpillPolicy(0, tmp_path))
    for step in range(40):
        table.put(step, row(float(step)))
        table.pop(step)
    assert os.path.getsize(tmp_path / "t.rows") <= 65536
    assert len(table) == table.nbytes == 0


@pytest.mark.parametrize("harm", ["gone", "short", "changed"])
def test_a_file_that_was_harmed_is_told(tmp_path: Path, harm: str) -> None:
    table = housed(SpillPolicy(0, tmp_path))
    table.put(0, row(1.0))
    path = checkpoint.Checkpoints(tmp_path).save(1, table)
    file = tmp_path / "t.rows"
    if harm == "gone":
        file.unlink()
    elif harm == "short":
        os.truncate(file, 4)
    else:
        file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(DamagedFile, match=r"t\.rows is (gone|damaged)"):
        checkpoint.load(path).attach(SpillPolicy(0, tmp_path), "t")


def test_a_record_knows_its_tables_and_counts_them_whole() -> None:
    inner, outer = ClientTable({0: row(1.0), 1: row(2.0)}), ClientTable({4: row(3.0)})
    tree: dict[str, Any] = {"a": [{"b": inner}], "c": outer, "d": ClientScalars({1: 2}), "e": row(0.0)}
    assert list(tables(tree, "x")) == [("x-a-0-b", inner), ("x-c", outer)]
    assert sorted(t[0].item() for t in tensors(tree)) == [0.0, 1.0, 2.0, 3.0]
    ledger = MemoryMeter()
    ledger.observe(tree)
    assert ledger.peak == 4 * 12


def test_marks_and_tables_come_back_as_what_they_were(tmp_path: Path) -> None:
    tree = {"m": ClientScalars({3: "slow", 1: True}), "t": ClientTable({2: row(1.0)})}
    again = checkpoint.load(checkpoint.Checkpoints(tmp_path).save(1, tree))
    assert type(again["m"]) is ClientScalars
    assert again["m"] == tree["m"]
    assert rows(again["t"]) == {2: [1.0] * 3}


@pytest.mark.parametrize("method", ["fedogd", "fedogd:privacy=true", "fedecho", "orthodyn"])
def test_a_run_whose_tables_are_in_files_is_the_same_run(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"time": 1500.0, "clients": 4, "epochs": 1, "seed": 3}
    whole = tarry.run(method, "digits", **settings)
    small = tarry.run(method, "digits", cache_limit=1e-3, out=tmp_path / "out", checkpoint_every=1e-6, **settings)
    assert small.weights_sha256 == whole.weights_sha256
    assert small.peak_server_bytes == whole.peak_server_bytes
    assert not list((tmp_path / "out" / "cache").glob("*")), "nothing is left behind"


@pytest.mark.parametrize("method", ["fedogd", "fedogd:privacy=true", "fedecho", "orthodyn"])
def test_a_run_whose_tables_are_in_files_resumes_to_the_same_weights(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"time": 1500.0, "clients": 4, "epochs": 1, "seed": 3}
    whole = tarry.run(method, "digits", **settings)
    out, in_file = tmp_path / "out", {**settings, "cache_limit": 1e-3, "checkpoint_every": 1e-6}
    interrupted_run(out, lambda e: e.updates == 2 * whole.updates // 3, method, "digits", **in_file)
    assert list((out / "cache").glob("*.rows"))
    assert tarry.resume(out).weights_sha256 == whole.weights_sha256
