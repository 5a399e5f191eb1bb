"""The queue: its order, its cost, and that a limit of time interrupts what is under way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tarry.core.errors import BadInput
from tarry.reproduce import catalog, queue
from tarry.reproduce.command import main
from tarry.reproduce.experiment import Experiment
from tarry.reproduce.jobs import CellRun, Queue, plan_jobs
from tarry.reproduce.options import ReproduceOptions

Table = Callable[..., Experiment]

TEXT = """
[[entry]]
run = "toy/table1"
only = ["b"]
rows = ["orthofl"]
seeds = "0,"
minutes = 3
[[entry]]
run = "toy/table1"
minutes = 6
measured = "two runs"
"""


@pytest.fixture
def queued(table: Table, folder: Path) -> Path:
    table()
    (folder / "queue.toml").write_text(TEXT)
    return folder


def labels() -> list[str]:
    pairs = queue.with_options(queue.read_queue(), ReproduceOptions())
    _, jobs = plan_jobs(pairs, lambda _: None, in_order=True)
    waiting = Queue(jobs).waiting
    assert all(isinstance(job, CellRun) for job in waiting)
    return [job.label for job in waiting]


def test_entries_come_in_their_order_first_seeds_first_and_no_run_twice(queued: Path) -> None:
    found = labels()
    assert found[0] == "toy/table1: orthofl, b, seed 0"
    assert len(found) == len(set(found)) == 8
    assert [label[-1] for label in found[1:]] == ["0"] * 3 + ["1"] * 4


def test_the_list_has_what_is_left_and_its_hours(queued: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--queue", "--list", "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "1. tarry reproduce toy/table1 --only b --rows orthofl --seeds 0,",
        "    1 to run, about 0.05 device hours (computed from client steps); 0.05 up to here",
        "2. tarry reproduce toy/table1",
        "    7 to run, about 0.7 device hours (measured: two runs); 0.75 up to here",
        "0.75 device hours in all",
    ]
    assert not catalog.results("toy/table1").path.exists()


def test_it_runs_what_is_missing(queued: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (queued / "queue.toml").write_text(TEXT[: TEXT.index("[[entry]]\n", 5)])
    assert main(["--queue", "--device", "cpu"]) == 0
    assert "[1/1] toy/table1: orthofl, b, seed 0: accuracy (%)" in capsys.readouterr().err
    assert list(json.loads(catalog.results("toy/table1").path.read_text())["cells"]) == ["orthofl/b"]
    main(["--queue", "--list", "--device", "cpu"])
    assert "    0 to run" in capsys.readouterr().out


def test_runs_under_way_are_interrupted_at_the_limit_and_continue_later(
    queued: Path, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of very many updates; the second command has no limit and ends it."""
    table(("time = 1500", "time = 1000000"), ("eval_every = 250", "eval_every = 500000"))
    flags = ["toy/table1", "--rows", "orthofl", "--only", "b", "--seeds", "1", "--device", "cpu"]
    assert main([*flags, "--stop", "0.3"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"1 run interrupted: --stop 0.3 is over; the same command resumes", said)
    (folder,) = Path("runs/toy/table1").iterdir()
    assert list((folder / "checkpoints").glob("*.safetensors"))
    assert not catalog.results("toy/table1").path.exists()


def test_what_is_wrong_in_it_is_said_with_its_entry(queued: Path) -> None:
    (queued / "queue.toml").write_text(
        TEXT.replace('only = ["b"]', 'only = ["c"]').replace("minutes = 6", "minutes = 0")
    )
    with pytest.raises(BadInput) as wrong:
        queue.read_queue()
    text = str(wrong.value)
    assert re.search(r"entry 1: only: there is no column 'c'", text)
    assert re.search(r"entry 2: minutes 0: wants the device minutes of one run", text)


@pytest.mark.parametrize("flag", [["toy/table1"], ["--only", "a"], ["--seeds", "1"], ["--size", "full"], ["--show"]])
def test_the_queue_says_what_is_run(queued: Path, flag: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--queue", *flag]) == 2
    assert "--queue: leave out " in capsys.readouterr().err
