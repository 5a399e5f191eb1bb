"""All tables that are asked for are one queue: its order, what they share, studies in it, and when it ends early."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tarry.cli.app import app
from tarry.core.errors import BadInput
from tarry.reproduce import catalog, jobs, pool
from tarry.reproduce.command import check_options, main
from tarry.reproduce.experiment import Experiment
from tarry.reproduce.jobs import Queue, StudyRun, plan_jobs
from tarry.reproduce.options import ReproduceFlags, ReproduceOptions
from tarry.reproduce.parser import read
from tarry.reproduce.running import run_all
from tarry.reproduce.studies import STUDIES
from tarry.reproduce.worker import JobFailure

Table = Callable[..., Experiment]
Do = Callable[..., list[str]]

STUDY = """
study = "two_clients"
title = "t"
where = "w"
words = "w"
measures = ["cosine"]
seeds = 2
[measure.cosine]
[study_options]
slow = [30.0]
[study_options.settings]
task = { name = "digits", limit = 120 }
time = 150.0
epochs = 1
"""


def study(folder: Path, name: str = "fig2", *pairs: tuple[str, str]) -> Experiment:
    text = STUDY
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path = folder / "toy" / f"{name}.toml"
    path.write_text(text)
    return read(path, f"toy/{name}")


def stored(name: str, **where: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(catalog.results(name, **where).path.read_text())
    return raw


def other(table: Table) -> Experiment:
    """A second table: its column a is the first one's, its column c is its own."""
    return table(
        ("[columns.b]", "[columns.c]"), ("[cells.orthofl.b]", "[cells.orthofl.c]"), ("10.0", "7.0"), name="table2"
    )


def queue_of(*experiments: Experiment, **flags: Any) -> Queue:
    options = check_options(experiments, ReproduceFlags(device="cpu", **flags))
    return Queue(plan_jobs([(e, options) for e in experiments], lambda _: None)[1])


def job(study: str = "none", *, alone: bool = False) -> StudyRun:
    """Of a study that there is not: it fails at once."""
    return StudyRun("toy/fig2", study, {}, "full", (0,), Path("runs"), 0, 1.0, alone, True)


def test_first_seeds_of_all_tables_come_first_and_among_them_the_longest(table: Table, folder: Path) -> None:
    hours = "gpu_hours = { a = 0.5 }"
    first = table((hours, "gpu_hours = { a = 4.0, b = 1.0 }"))
    second = table((hours, "gpu_hours = { a = 8.0, b = 2.0 }"), ("lr = 0.1", "lr = 0.3"), name="table2")
    third = study(folder, "fig2", ("seeds = 2", "seeds = 2\ngpu_hours = { clients = 3.0 }"))
    order = queue_of(first, second, third, rows="fedavg", workers=2).waiting
    once = ["table2: fedavg, a", "fig2: two_clients", "table1: fedavg, a", "table2: fedavg, b", "table1: fedavg, b"]
    assert [j.label for j in order] == [f"toy/{name}, seed {seed}" for seed in (0, 1) for name in once]


def test_a_run_of_unknown_length_stands_in_the_middle(table: Table) -> None:
    hours = "gpu_hours = { a = 0.5 }"
    long = table((hours, "gpu_hours = { a = 40.0 }"))
    short = table((hours, "gpu_hours = { a = 0.1, b = 0.2 }"), ("lr = 0.1", "lr = 0.3"), name="table2")
    order = queue_of(long, short, rows="fedavg", seeds="1").waiting
    assert [(j.label[4:10], j.label[-9]) for j in order] == [
        ("table1", "a"),
        ("table1", "b"),  # as long as the median, which is table2's b
        ("table2", "b"),
        ("table2", "a"),
    ]


def test_what_measures_seconds_comes_last_and_has_the_machine_to_itself() -> None:
    queue = Queue([job("latency", alone=True), job("a"), job("b")])
    first, second = queue.take(), queue.take()
    assert first is not None
    assert second is not None
    assert {first.label, second.label} == {"toy/fig2: a, seed 0", "toy/fig2: b, seed 0"}
    assert queue.take([first]) is None
    alone = queue.take()
    assert alone is not None
    assert alone.alone
    queue.first(job("c"))
    assert queue.take([alone]) is None
    assert queue.take() == job("c")


def test_a_cell_of_two_tables_is_run_once_for_both(table: Table, do: Do) -> None:
    said = do(table(), other(table), rows="fedavg", seeds="1")
    assert any("toy/table1, toy/table2, full size: 3 runs to do" in s for s in said)
    assert sum("updates" in s for s in said) == 3
    assert any(s.startswith("toy/table1 (and toy/table2): fedavg, a, seed 0: accuracy") for s in said)
    cells = [stored(f"toy/table{n}")["cells"] for n in (1, 2)]
    assert [set(c) for c in cells] == [{"fedavg/a", "fedavg/b"}, {"fedavg/a", "fedavg/c"}]
    assert cells[0]["fedavg/a"] == cells[1]["fedavg/a"]
    assert cells[0]["fedavg/b"] != cells[1]["fedavg/c"]


def test_a_table_is_told_as_soon_as_nothing_is_left_of_it(table: Table, folder: Path, do: Do) -> None:
    first, second = table(), other(table)
    shows = folder / "toy" / "fig9.toml"
    shows.write_text('uses = "table1"\ntitle = "t"\nwhere = "w"\nwords = "w"\nmeasures = ["accuracy"]\n')
    do(second, rows="orthofl", seeds="1")
    all_three = [first, read(shows, "toy/fig9"), second]
    what, ended = (
        check_options(all_three, ReproduceFlags(rows="orthofl", seeds="1", device="cpu")),
        list[tuple[str, int]](),
    )
    done = list[str]()
    run_all(
        all_three,
        what,
        lambda r: done.append(r.text) if r.text else None,
        lambda _: None,
        lambda e: ended.append((e.name, len(done))),
    )
    assert ended == [("toy/table2", 0), ("toy/table1", 1), ("toy/fig9", 1)]  # a was there, b was run


def test_a_study_in_workers_gives_what_it_gives_alone(folder: Path, do: Do, tmp_path: Path) -> None:
    e = study(folder)
    do(e, results=tmp_path / "alone")
    said = do(e, workers=2)
    wanted, found = (stored(e.name, folder=f)["study"]["full"]["result"] for f in (tmp_path / "alone", None))
    assert found == wanted
    assert found["seeds"] == [0, 1]
    told = [s for s in said if s.startswith("toy/fig2: slow client 30 s, seed ")]
    assert any("seed 0: 10" in s for s in told)
    assert any("seed 1: 10" in s for s in told)
    assert not list(Path("runs").rglob("*.json"))  # its pieces
    assert do(e, workers=2) == ["toy/fig2: its results are there"]


def test_of_a_study_whose_seed_fails_the_others_are_kept_and_so_are_its_pieces(
    folder: Path, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[list[int]] = []

    class MadeUp:
        @staticmethod
        def run(options: Any, *, seeds: Any, folder: Path, **more: Any) -> dict[str, Any]:
            asked_for.append(list(seeds))
            if 1 in seeds and len(asked_for) < 5:
                raise BadInput("seed 1: no")
            (folder / f"piece-{seeds[0]}.json").write_text("1")
            return {"numbers": {"r": {"c": {str(s): 1.0 for s in seeds}}}, "notes": []}

    monkeypatch.setitem(STUDIES, "made_up", "made_up_study")
    monkeypatch.setitem(sys.modules, "made_up_study", MadeUp)  # type: ignore[arg-type]
    monkeypatch.setattr(pool, "run_parallel", pool.run_serial)
    e = study(folder, "fig2", ("two_clients", "made_up"))
    said = do(e, fine=False, workers=3, seeds="3")
    assert asked_for == [[0], [1], [2], [0, 2]]
    assert "toy/fig2: made_up, seed 1: seed 1: no" in said
    assert stored(e.name)["study"]["full"]["result"]["seeds"] == [0, 2]
    assert list(Path("runs").rglob("piece-2.json"))
    do(e, workers=3, seeds="3")
    assert asked_for[4:] == [[0], [1], [2], [0, 1, 2]]
    assert not list(Path("runs").rglob("piece-2.json"))


def test_what_fails_in_a_study_or_lacks_its_data_stops_no_other_table(
    table: Table, folder: Path, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARRY_DATA", str(tmp_path / "data"))
    digits = '{ name = "digits", limit = 120 }'
    lacking = study(folder, "fig2", (digits, '"mnist"'), ("slow = [30.0]", "slow = [30.0]\nstand_ins = []"))
    away = table(('task = "digits"', 'task = "mnist"'), ("[columns.b]", "[columns.c]"), ("orthofl.b", "orthofl.c"))
    good = study(folder, "fig3")
    said = do(lacking, away, good, fine=False, seeds="1", rows="fedavg", workers=2)
    assert any(s.startswith("toy/fig2: two_clients, seed 0: failed: ") and "mnist" in s for s in said)
    assert "toy/table1: mnist is not here: 2 runs left out" in said
    assert [s.count(", seed 0") for s in said if s.count(", seed 0") > 1] == [3], "a mistake of many is told once"
    assert stored("toy/fig3")["study"]["full"]["result"]["numbers"]


def test_mistakes_in_all_tables_are_said_before_anything_is_run(table: Table, folder: Path, do: Do) -> None:
    bad = table(("lr = 0.1", "lr = -1.0"), name="table2")
    with pytest.raises(BadInput) as caught:
        do(table(), bad, study(folder, "fig2", ("two_clients", "two_cleints")))
    assert "table2.toml" in str(caught.value)
    assert "study: there is no 'two_cleints'. Did you mean 'two_clients'?" in str(caught.value)
    assert not list(folder.rglob("*.json"))


def test_a_worker_that_is_killed_while_it_has_nothing_to_do_is_replaced() -> None:
    workers = pool._JobPool(ReproduceOptions(), 1)
    try:
        for _ in range(2):
            workers.feed(Queue([job()]))
            (conn,) = workers.busy
            outcome = workers.message(conn)
            assert isinstance(outcome, JobFailure)
            assert "KeyError: 'none'" in outcome.text  # its own answer
            process = workers._processes[conn]
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    finally:
        workers.close()


def test_after_its_minutes_a_queue_gives_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(jobs.clock, "monotonic", lambda: now[0])
    queue = Queue([job("a"), job("b"), job("c")], minutes=8)
    assert queue.take() == job("a")
    now[0] += 479
    assert queue.take() == job("b")
    now[0] += 2
    assert queue.take() is None
    assert list(queue.waiting) == [job("c")]


def test_runs_that_were_not_begun_within_the_minutes_are_counted_and_done_the_next_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["toy/table1", "--rows", "fedavg", "--seeds", "1", "--device", "cpu"]
    assert main([*words, "--within", "1e-9", "--workers", "2"]) == 0
    out = capsys.readouterr().out
    assert "2 runs not begun: --within 1e-09 is over; the same command resumes" in out
    assert not list(folder.rglob("*.json"))
    assert main([*words, "--within", "60"]) == 0
    assert "not begun" not in capsys.readouterr().out
    assert set(stored("toy/table1")["cells"]) == {"fedavg/a", "fedavg/b"}


def test_tarry_reproduce_takes_minutes_too(folder: Path) -> None:
    words = ["reproduce", "toy/table1", "--rows", "fedavg", "--seeds", "1", "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--within", "1e-9"])
    assert done.exit_code == 0, done.output
    assert "2 runs not begun: --within 1e-09 is over; the same command resumes" in done.output
    rejected = CliRunner().invoke(app, [*words, "--within", "-1"])
    assert isinstance(rejected.exception, BadInput)
    assert str(rejected.exception) == "--within -1: wants minutes, above 0"
