"""The driver on a network in memory: what it accepts, what it rejects, whom it waits for."""

from __future__ import annotations

import numpy as np
import pytest

from tarry.deploy.server.open_tickets import max_tickets_per_client
from tarry.deploy.wire import ReplyMessage
from tarry.record.result import sha256
from tarry.record.rows import read_rows
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, npy, small_plan


def federation(tmp_path, *, seconds=None, plan=None, **terms):
    made = plan or small_plan(method="orthofl")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", seconds))
    return grid, driver(made, grid, tmp_path / "out", **terms)


def rows(tmp_path, *kinds):
    return [r for r in read_rows(tmp_path / "out" / "events.jsonl") if not kinds or r["kind"] in kinds]


def until(d, grid, done, *, most=3000):
    for _ in range(most):
        if done():
            return
        d.tick()
        grid.clock.sleep(0.1)
    raise AssertionError("it never happens")


def test_fast_clients_bring_more_updates_than_slow_ones(tmp_path):
    grid, d = federation(tmp_path, seconds=lambda c, _: 1.0 + 6 * c, plan=small_plan(method="orthofl", updates=40))
    assert finished(d, grid) == "updates"
    counts = [d.stats[c].updates for c in range(4)]
    assert counts[0] > 3 * counts[1] > 3 * counts[3] > 0
    assert sum(counts) == 40


def test_rows_are_those_of_a_simulated_run(tmp_path):
    grid, d = federation(tmp_path)
    finished(d, grid)
    kinds = [r["kind"] for r in rows(tmp_path)]
    assert kinds.count("arrival") == 12
    assert kinds[0] == "evaluate"
    assert kinds.count("join") == 4
    scores = rows(tmp_path, "evaluate")
    assert scores[-1]["accuracy"] is not None
    assert [s["time"] for s in scores[:3]] == [0.0, 5.0, 10.0]


def test_the_budget_of_time_is_kept(tmp_path):
    grid, d = federation(tmp_path, plan=small_plan(method="fedasync", updates=None, time=20.0))
    assert finished(d, grid) == "time"
    assert all(r["time"] <= 20.0 for r in rows(tmp_path))
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def spoiled(what):
    """A node whose answers to work are changed before they leave."""
    return lambda letter, back: what(letter, back) if letter.kind == "train" else back


def words(**changed):
    return spoiled(
        lambda _, back: back._replace(fields={**back.fields, **{k.replace("_", "-"): v for k, v in changed.items()}})
    )


def delta(make):
    return spoiled(
        lambda _, back: back._replace(arrays={**back.arrays, "delta": npy(make(len(back.arrays["delta"].data)))})
    )


def test_an_answer_that_was_given_once_is_not_taken_again(tmp_path):
    seen: list[ReplyMessage] = []

    def twice(_, back):
        seen.append(back)
        return seen[0]._replace(request=back.request)

    made = small_plan(method="fedasync")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    grid.there[100].spoil = spoiled(twice)
    d = driver(made, grid, tmp_path / "out")
    finished(d, grid)
    assert d.stats[0].updates == 1
    assert d.stats[0].rejected["foreign ticket"] >= 1


def test_weights_that_are_not_finite_are_refused_and_counted(tmp_path):
    made = small_plan(method="fedasync")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    size = made.layout.size
    grid.there[102].spoil = delta(lambda _: np.full(size, np.nan, np.float32))
    d = driver(made, grid, tmp_path / "out")
    finished(d, grid)
    assert d.engine.rejected >= 1
    assert {r["client"] for r in rows(tmp_path, "rejected")} == {2}
    assert np.isfinite(d.engine.server.weights.numpy()).all()
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def test_a_client_that_is_late_loses_its_ticket_and_is_waited_for_longer(tmp_path):
    made = small_plan(method="orthofl", updates=200)
    grid, d = federation(tmp_path, plan=made, seconds=lambda c, k: 120.0 if (c, k) == (1, 3) else 4.0, deadline=500.0)
    until(d, grid, lambda: d.stats[1].late == 1)
    assert d.deadlines.deadline(1) > 200.0
    finished(d, grid)
    lost = rows(tmp_path, "lost")
    assert [r["client"] for r in lost] == [1]
    assert d.stats[1].failed == {"deadline": 1}
    assert d.stats[1].updates > 4, "it is handed work again"
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def test_a_client_that_fails_again_and_again_is_asked_less_and_less(tmp_path):
    grid, d = federation(tmp_path, plan=small_plan(method="orthofl", updates=100))
    grid.there[102].spoil = spoiled(
        lambda _, back: ReplyMessage(back.request, back.node, {}, {}, error="its app raised an error")
    )
    finished(d, grid)
    mine = [r["time"] for r in rows(tmp_path, "lost") if r["client"] == 2]
    gaps = np.diff(mine)
    assert len(gaps) >= 3
    assert (np.diff(gaps) > 4.0).all()


def test_the_link_may_be_down_for_a_while(tmp_path):
    grid, d = federation(tmp_path)
    until(d, grid, lambda: d.engine.updates == 3)
    grid.down = True
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        grid.clock.sleep(seconds)
        grid.down = len(slept) < 8

    assert d.run(sleep=sleep) == "updates"
    assert max(slept) > 1.0
    numbers = [r["ticket"] for r in rows(tmp_path, "arrival")]
    assert len(numbers) == len(set(numbers)) == 12
    d.close()


def test_newcomers_are_handed_work_and_those_who_left_are_not(tmp_path):
    made = small_plan(method="fedasync", updates=30)
    grid = FakeGrid(Clock(), {})
    everybody = nodes(made, tmp_path / "homes")
    d = driver(made, grid, tmp_path / "out")
    until(d, grid, lambda: grid.clock() > 1e9 + 5)
    assert d.engine.server.numbers == 0
    grid.there[100] = everybody[100]
    until(d, grid, lambda: d.stats[0].updates >= 2)
    grid.there[103] = everybody[103]
    until(d, grid, lambda: d.stats[3].updates >= 1)
    del grid.there[100]
    until(d, grid, lambda: bool(d.stats[0].failed))
    handed = d.stats[0].handouts
    finished(d, grid)
    assert d.stats[0].handouts == handed
    d2 = [r["kind"] for r in rows(tmp_path, "join", "leave")]
    assert d2.count("leave") >= 1


def test_a_node_that_begins_anew_is_not_waited_for(tmp_path):
    made = small_plan(method="orthofl", updates=30)
    grid, d = federation(tmp_path, plan=made, seconds=lambda c, k: 1e5 if (c, k) == (2, 1) else 3.0, deadline=1e6)
    until(d, grid, lambda: d.stats[2].handouts == 2)
    grid.began[102], grid.there[102].free = "later", 0.0
    until(d, grid, lambda: bool(d.stats[2].failed))
    assert d.stats[2].failed == {"its node restarted": 1}
    finished(d, grid)
    assert d.stats[2].updates >= 3


def test_a_stop_waits_for_what_is_under_way_and_hands_out_nothing_more(tmp_path):
    made = small_plan(method="fedasync", updates=1000)
    grid, d = federation(tmp_path, plan=made)
    until(d, grid, lambda: d.engine.updates >= 5)
    before = d.engine.server.numbers
    assert d.run(lambda: True, sleep=grid.clock.sleep) == "stopped"
    assert d.engine.server.numbers == before
    assert not d.engine.server.tickets
    d.close()
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)
    again = driver(made, grid, tmp_path / "out")
    until(again, grid, lambda: again.engine.updates >= before + 5)
    again.close()
    assert replay(tmp_path / "out").first_difference is None


def test_a_stop_does_not_wait_for_ever(tmp_path):
    grid, d = federation(tmp_path, seconds=lambda c, _: 1000.0, stop_within=7.0)
    until(d, grid, lambda: d.engine.server.numbers == 4)
    began = grid.clock()
    assert d.run(lambda: True, sleep=grid.clock.sleep) == "stopped"
    assert 7.0 <= grid.clock() - began < 9.0
    d.close()


def test_clients_evaluate_the_global_when_they_are_asked(tmp_path):
    grid, d = federation(tmp_path, client_eval_every=6.0)
    finished(d, grid)
    told = [r for r in rows(tmp_path, "evaluate") if "client" in r]
    assert {r["client"] for r in told} <= {0, 1, 2, 3}
    assert told
    assert all(0 <= r["accuracy"] <= 1 for r in told)
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def test_an_impostor_does_not_get_the_place_of_a_client(tmp_path):
    made = small_plan(method="fedasync", updates=20)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    until(d, grid, lambda: d.engine.updates == 4)
    thief = nodes(made, tmp_path / "thief")[101]
    del grid.there[101]
    grid.there[201] = thief
    finished(d, grid)
    assert d.clients.at(201) is None
    assert d.stats.rejected["identity"] >= 1
    assert "another key" in (tmp_path / "out" / "log.jsonl").read_text()


@pytest.mark.parametrize(
    ("method", "most"),
    [
        ("fedasync", 2),
        ("fedbuff", 2),
        ("ca2fl", 2),
        ("orthofl", 1),
        ("fedavg", 1),
        ("scaffold", 1),
        ("moon", 1),
    ],
)
def test_two_tickets_are_out_only_where_the_method_allows_it(method, most):
    assert max_tickets_per_client(small_plan(method=method).method) == most
