"""A driver that is killed, wherever: nothing accepted is lost, nothing is applied twice, the rest goes on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from tarry.core.errors import BadInput, DamagedFile
from tarry.deploy.server.journaled_state import JournaledState
from tarry.deploy.wire import Unreachable
from tarry.record.journal import Journal
from tarry.record.result import sha256
from tarry.record.rows import read_rows
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan


def killed_at(made, folder: Path, homes: Path, *, run: int, kill: tuple[str, int, str] | None) -> bool:
    """Drive in a process of its own that is killed at the n-th call of a place; whether it was."""
    pid = os.fork()
    if pid == 0:
        try:
            _drive(made, folder, homes, run, kill)
        finally:
            os._exit(0 if (folder / "over").exists() else 3)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the driver failed"
    return False


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _drive(made, folder: Path, homes: Path, run: int, kill: tuple[str, int, str] | None) -> None:
    torch.set_num_threads(1)
    left = [kill[1] if kill else -1]

    def armed(kind: type, name: str) -> None:
        plain = getattr(kind, name)

        def call(self, *args, **named):
            left[0] -= 1
            if left[0] == 0 and kill is not None:
                if kill[2] == "half" and name == "append":
                    os.write(self._log._fd, json.dumps(args[0]).encode()[:17])
                if kill[2] != "after":
                    _die()
                plain(self, *args, **named)
                _die()
            return plain(self, *args, **named)

        setattr(kind, name, call)

    if kill is not None:
        armed({"append": Journal, "save_update": Journal, "checkpoint": JournaledState}[kill[0]], kill[0])
    grid = FakeGrid(Clock(1e9 + 40.0 * run), nodes(made, homes), run=str(run))
    d = driver(made, grid, folder, checkpoint_every=6.0)
    finished(d, grid)
    (folder / "over").write_text(sha256(d.engine.server.output_weights))


KILLS = [
    ("append", 1, "half"), ("append", 9, "before"), ("append", 14, "half"), ("append", 20, "after"),
    ("save_update", 2, "before"), ("save_update", 3, "after"), ("append", 27, "after"), ("checkpoint", 2, "before"),
    ("checkpoint", 1, "after"), ("append", 31, "half"), ("append", 17, "before"),
]  # fmt: skip


@pytest.mark.parametrize("method", ["orthofl", "ca2fl:buffer=2", "scaffold"])
def test_a_driver_that_is_killed_again_and_again_reaches_an_honest_end(method, tmp_path):
    made = small_plan(method=method, updates=40)
    folder, homes = tmp_path / "out", tmp_path / "homes"
    folder.mkdir()
    accepted: list[int] = []
    died = 0
    for run, kill in enumerate(KILLS):
        if not killed_at(made, folder, homes, run=run, kill=kill):
            break
        died += 1
        now = [r["number"] for r in read_rows(folder / "journal.jsonl") if r["op"] == "update"]
        assert now[: len(accepted)] == accepted, "what was accepted stays"
        accepted = now
    else:
        assert not killed_at(made, folder, homes, run=len(KILLS), kill=None)
    assert died >= 6
    numbers = [r["number"] for r in read_rows(folder / "journal.jsonl") if r["op"] == "update"]
    assert len(numbers) == len(set(numbers)) == 40
    assert numbers[: len(accepted)] == accepted
    told = replay(folder)
    assert told.first_difference is None
    assert told.updates == 40
    assert told.weights_sha256 == (folder / "over").read_text()


def test_listeners_see_the_events_of_an_instant_after_its_row_is_written(tmp_path, monkeypatch):
    made = small_plan(method="orthofl", updates=20)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    seen, plain = [], Journal.append
    d.state._listeners = (*d.state._listeners, lambda e: seen.append(e.kind))

    def append(self, row, *, sync=False):
        if row["op"] == "close":
            assert not d.state.engine.in_instant, "the instant is computed"
            assert not {"hand_out", "join"} & set(seen), "and nobody has seen it"
            raise OSError("no space left on device")
        plain(self, row, sync=sync)

    monkeypatch.setattr(Journal, "append", append)

    def tick_until_it_fails():
        while True:
            d.tick()
            grid.clock.sleep(0.1)

    with pytest.raises(OSError, match="no space"):
        tick_until_it_fails()
    assert d.state._events, "there was something to see"
    assert not {"hand_out", "join"} & set(seen)
    monkeypatch.undo()
    d.close()
    again = driver(made, grid, tmp_path / "out")
    assert again.engine.server.numbers == 0, "nothing was handed out"
    assert finished(again, grid) == "updates"
    assert replay(tmp_path / "out").weights_sha256 == sha256(again.engine.server.output_weights)


def test_tickets_of_the_same_run_are_waited_for(tmp_path):
    made = small_plan(method="orthofl", updates=20)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    first = driver(made, grid, tmp_path / "out")
    while first.engine.updates < 5:
        first.tick()
        grid.clock.sleep(0.1)
    out, updates = set(first.engine.server.tickets), first.engine.updates
    first.close()  # which says nothing to anybody, as a kill would
    second = driver(made, grid, tmp_path / "out")
    assert set(second.engine.server.tickets) == out
    assert second.engine.updates == updates
    finished(second, grid)
    arrived = {r["number"] for r in read_rows(tmp_path / "out" / "journal.jsonl") if r["op"] == "update"}
    assert out <= arrived
    assert second.engine.lost == 0
    assert replay(tmp_path / "out").weights_sha256 == sha256(second.engine.server.output_weights)


def test_tickets_of_an_earlier_run_are_lost_and_their_holders_not_blamed(tmp_path):
    made = small_plan(method="orthofl", updates=20)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    first = driver(made, grid, tmp_path / "out")
    while first.engine.updates < 5:
        first.tick()
        grid.clock.sleep(0.1)
    out = set(first.engine.server.tickets)
    first.close()
    grid.run = "2"
    second = driver(made, grid, tmp_path / "out")
    second.tick()
    lost = {r["number"] for r in read_rows(tmp_path / "out" / "journal.jsonl") if r["op"] == "lost"}
    assert lost == out
    assert len(second.engine.server.tickets) == 4, "everybody is at work again"
    finished(second, grid)
    assert replay(tmp_path / "out").weights_sha256 == sha256(second.engine.server.output_weights)


def test_the_checkpoint_before_will_do(tmp_path):
    made = small_plan(method="ca2fl:buffer=2", updates=30)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    first = driver(made, grid, tmp_path / "out", checkpoint_every=4.0)
    while first.engine.updates < 16:
        first.tick()
        grid.clock.sleep(0.1)
    weights = sha256(first.engine.server.output_weights)
    first.close()
    there = sorted((tmp_path / "out" / "checkpoints").glob("*"))
    assert len(there) == 2
    there[-1].write_bytes(there[-1].read_bytes()[:-50])
    second = driver(made, grid, tmp_path / "out", checkpoint_every=4.0)
    assert sha256(second.engine.server.output_weights) == weights
    finished(second, grid)
    assert replay(tmp_path / "out").weights_sha256 == sha256(second.engine.server.output_weights)


def test_an_accepted_update_that_is_gone_is_told(tmp_path):
    made = small_plan(method="fedasync", updates=30)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    first = driver(made, grid, tmp_path / "out", checkpoint_every=1e9)
    while first.engine.updates < 4:
        first.tick()
        grid.clock.sleep(0.1)
    first.close()
    min((tmp_path / "out" / "updates").glob("*")).unlink()
    with pytest.raises(DamagedFile, match="file of an accepted update is missing"):
        driver(made, grid, tmp_path / "out")


def test_two_drivers_do_not_share_a_folder(tmp_path):
    made = small_plan(method="fedasync")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    first = driver(made, grid, tmp_path / "out")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            driver(made, grid, tmp_path / "out")
        except BadInput:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    first.close()


def test_old_updates_are_removed(tmp_path):
    made = small_plan(method="fedasync", updates=40)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out", checkpoint_every=3.0)
    finished(d, grid)
    assert len(list((tmp_path / "out" / "updates").iterdir())) < 15
    assert len(list((tmp_path / "out" / "checkpoints").iterdir())) == 2


def test_no_token_is_on_disk(tmp_path, caplog):
    made = small_plan(method="orthofl", updates=20)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    finished(driver(made, grid, tmp_path / "out", checkpoint_every=3.0), grid)
    tokens = [str(request.fields["token"]).encode() for request in grid.log if request.kind == "train"]
    assert len(set(tokens)) == len(tokens) >= 20
    files = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert [token for token in tokens for content in [*files, caplog.text.encode()] if token in content] == []


def test_a_ticket_that_was_not_sent_before_a_restart_gets_a_new_token(tmp_path, monkeypatch):
    made = small_plan(method="orthofl", updates=12)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    first = driver(made, grid, tmp_path / "out")
    plain = first._send

    def send(tickets):
        if first.engine.updates >= 3:
            raise Unreachable("connection lost")
        plain(tickets)

    monkeypatch.setattr(first, "_send", send)

    def tick_until_the_link_is_down():
        while True:
            first.tick()
            grid.clock.sleep(0.1)

    with pytest.raises(Unreachable):
        tick_until_the_link_is_down()
    unsent = {t.number for t in first.open_tickets if t.request is None}
    assert unsent
    first.close()
    second = driver(made, grid, tmp_path / "out")
    finished(second, grid)
    arrived = {r["number"] for r in read_rows(tmp_path / "out" / "journal.jsonl") if r["op"] == "update"}
    assert unsent <= arrived
    assert second.stats.rejected == {}
    assert replay(tmp_path / "out").weights_sha256 == sha256(second.engine.server.output_weights)
