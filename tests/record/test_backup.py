"""A copy of a federation that is made while its server works: it resumes from it, to the bit."""

from __future__ import annotations

import itertools

import pytest

from tarry.core.errors import BadInput
from tarry.record import backup, checkpoint
from tarry.record.backup import back_up
from tarry.record.consistency import check_run
from tarry.record.result import sha256
from tarry.record.rows import read_rows
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan


@pytest.mark.parametrize("method", ["orthofl", "scaffold"])
@pytest.mark.parametrize("moment", [1, 7, 16])
def test_a_federation_resumes_from_a_copy_that_was_made_at_any_moment(method, moment, tmp_path, monkeypatch):
    """While files are copied, the server accepts updates and writes checkpoints."""
    made = small_plan(method=method, updates=24)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d, plain = driver(made, grid, tmp_path / "out", checkpoint_every=3.0), backup._copy_file
    while d.engine.updates < moment:
        d.tick()
        grid.clock.sleep(0.1)

    def copy_while_it_works(path, target):
        if not d.ended:
            d.tick()
            grid.clock.sleep(0.1)
        return plain(path, target)

    monkeypatch.setattr(backup, "_copy_file", copy_while_it_works)
    (tmp_path / "out" / "flower").mkdir()
    (tmp_path / "out" / "flower" / "key").write_text("secret")
    assert back_up(tmp_path / "out", tmp_path / "copy") > 3
    d.close()
    assert not (tmp_path / "copy" / "flower").exists()
    assert replay(tmp_path / "copy").same
    grid.run = "2"
    again = driver(made, grid, tmp_path / "copy", checkpoint_every=3.0)
    assert again.engine.updates >= moment
    assert finished(again, grid) == "updates"
    numbers = [r["number"] for r in read_rows(tmp_path / "copy" / "journal.jsonl") if r["op"] == "update"]
    assert len(numbers) == len(set(numbers)) == 24
    assert replay(tmp_path / "copy").weights_sha256 == sha256(again.engine.server.output_weights)


def test_a_copy_during_which_checkpoints_were_replaced_is_made_again(tmp_path, monkeypatch):
    made = small_plan(method="fedasync", updates=30)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d, plain, copies = driver(made, grid, tmp_path / "out", checkpoint_every=2.0), backup._copy, []
    while d.state._checkpoints < 3:
        d.tick()
        grid.clock.sleep(0.1)

    def slow(folder, copy):
        copies.append(1)
        if len(copies) < 3:
            for _ in range(2):
                d.state.checkpoint()
        return plain(folder, copy)

    monkeypatch.setattr(backup, "_copy", slow)
    back_up(tmp_path / "out", tmp_path / "copy")
    assert len(copies) == 3
    d.close()
    driver(made, grid, tmp_path / "copy").close()


@pytest.mark.parametrize("at", range(8))
def test_a_copy_has_the_tensors_of_its_checkpoints(at, tmp_path, monkeypatch):
    """A checkpoint is written while files are copied; so the oldest one and its tensors are deleted."""
    monkeypatch.setattr(checkpoint, "_LARGE", 256)
    made = small_plan(method="fedasync", updates=30)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d, plain, count = driver(made, grid, tmp_path / "out", checkpoint_every=1e6), backup._copy_file, itertools.count()

    def work_and_save() -> None:
        updates = d.engine.updates
        while d.engine.updates < updates + 3:
            d.tick()
            grid.clock.sleep(0.1)
        d.state.checkpoint()

    def copy_while_it_works(path, target):
        if next(count) == at:
            work_and_save()
        return plain(path, target)

    for _ in range(3):
        work_and_save()
    monkeypatch.setattr(backup, "_copy_file", copy_while_it_works)
    n = back_up(tmp_path / "out", tmp_path / "copy")
    d.close()
    copy = tmp_path / "copy"
    assert n == sum(path.is_file() for path in copy.rglob("*"))
    assert list((copy / "checkpoints" / "tensors").iterdir())
    assert [check.text for check in check_run(copy) if not check.ok and check.name != "settings"] == []
    again = driver(made, grid, copy)
    assert again.engine.updates >= 9
    again.close()


def test_a_copy_replaces_nothing_and_needs_a_federation(tmp_path):
    with pytest.raises(BadInput, match="no federation was recorded here"):
        back_up(tmp_path, tmp_path / "copy")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "journal.jsonl").touch()
    with pytest.raises(BadInput, match="it is not an empty folder"):
        back_up(tmp_path / "out", tmp_path)
