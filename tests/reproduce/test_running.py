"""What is there is not run again, what was begun goes on, what changed is kept as earlier, what fails stops nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import run
from tarry.reproduce import catalog, pool, running
from tarry.reproduce.claims import verdicts
from tarry.reproduce.experiment import Experiment
from tarry.reproduce.store import shown
from tarry.reproduce.studies import STUDIES
from tarry.reproduce.tables import findings
from tarry.tasks.data import fetch
from tests.helpers.processes import PATIENCE, descendants, process_ended, wait_until

Table = Callable[..., Experiment]
Do = Callable[..., list[str]]


def results(quick: bool = False) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(catalog.results("toy/table1", quick=quick).path.read_text())
    return raw


def digests(data: dict[str, Any]) -> dict[str, str]:
    return {
        f"{key} {size} {seed}": raw["weights"]
        for key, sizes in data["cells"].items()
        for size, there in sizes.items()
        for seed, raw in there["seeds"].items()
    }


def test_results_are_those_of_tarry_run(table: Table, do: Do, tmp_path: Path) -> None:
    e = table()
    do(e, rows="orthofl", only="b", seeds="1")
    cell = results()["cells"]["orthofl/b"]["full"]
    alone = run(**{**cell["settings"], "seed": 0})
    assert alone.final_accuracy is not None
    found = cell["seeds"]["0"]
    assert found["weights"] == alone.weights_sha256
    assert found["numbers"]["accuracy"] == pytest.approx(100 * alone.final_accuracy, abs=1e-3)
    assert found["curve"]["updates"] == [p[1] for p in alone.curve]
    assert not list((tmp_path / "runs").rglob("spec.toml"))  # what is in the results needs no folder


def test_a_second_run_adds_what_is_missing_and_repeats_nothing(table: Table, do: Do) -> None:
    e = table()
    do(e, only="a", seeds="1")
    before = digests(results())
    assert set(before) == {"fedavg/a full 0", "orthofl/a full 0"}
    said = do(e, seeds="0,3")
    assert any("6 runs to do" in s for s in said)
    after = digests(results())
    assert len(after) == 8
    assert {k: after[k] for k in before} == before
    assert any("8 of 8 runs are there" in s for s in do(e, seeds="0,3"))


def test_sizes_are_kept_apart(table: Table, do: Do) -> None:
    e = table()
    do(e, size="reduced", rows="fedavg", seeds="1")
    do(e, quick=True)
    assert {k: list(v) for k, v in results()["cells"].items()} == {"fedavg/a": ["reduced"], "fedavg/b": ["full"]}
    assert results()["cells"]["fedavg/a"]["reduced"]["changed"] == "900 of 1,500 virtual seconds"
    quick = results(quick=True)["cells"]
    assert {size for sizes in quick.values() for size in sizes} == {"quick"}
    assert {seed for s in quick.values() for seed in s["quick"]["seeds"]} == {"0"}  # one seed for a quick look


def test_cells_whose_settings_changed_are_kept_as_earlier_ones(table: Table, do: Do) -> None:
    do(table(), seeds="1", rows="fedavg")
    old = digests(results())
    e = table(("alpha = 10.0", "alpha = 5.0"))
    assert catalog.results(e.name).entries(e.cell("fedavg", "b", "full")) == {}
    said = do(e, seeds="1", rows="fedavg", only="a")
    assert any("fedavg/b (full): its settings have changed" in s for s in said)
    now = digests(results())
    assert now.pop("fedavg/a full 0") == old["fedavg/a full 0"]
    assert list(now.values()) == [old["fedavg/b full 0"]]
    assert next(iter(now)).startswith("fedavg/b earlier-")
    size, changed, runs = shown(e, catalog.results(e.name))["b"]
    assert (size, changed, list(runs)) == ("earlier", "partition.alpha 10.0 for 5.0", ["fedavg"])
    assert all(v.holds is None or "a" in v.words for v in verdicts(findings(e, catalog.results(e.name))))
    back = table()
    assert not any("1 run to do" in s for s in do(back, seeds="1", rows="fedavg"))  # the runs are taken from there
    assert digests(results())["fedavg/b full 0"] == old["fedavg/b full 0"]


def test_a_cell_of_another_table_with_the_same_settings_is_not_run_again(table: Table, do: Do) -> None:
    do(table(), rows="fedavg", only="a", seeds="1")
    other = table(("[columns.b]", "[columns.c]"), ("[cells.orthofl.b]", "[cells.orthofl.c]"), name="table2")
    said = do(other, rows="fedavg", seeds="1")
    assert any("1 of 2 runs are there, 1 of them from other tables" in s for s in said)
    copied = json.loads(catalog.results("toy/table2").path.read_text())
    assert digests(copied)["fedavg/a full 0"] == digests(results())["fedavg/a full 0"]


def test_workers_change_no_result(table: Table, do: Do, tmp_path: Path) -> None:
    e = table()
    do(e, seeds="1")
    alone = digests(results())
    do(e, seeds="1", workers=2, results=tmp_path / "other")
    assert digests(json.loads((tmp_path / "other" / "toy" / "results" / "table1.json").read_text())) == alone


def job(column: str, seed: int, weight: float) -> Any:
    name = f"{column}, seed {seed}"
    return SimpleNamespace(kind=column, label=name, weight=weight)


def test_how_long_is_left_is_learnt_from_runs_of_the_same_column(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(running.clock, "monotonic", lambda: now[0])
    jobs = [job("a", 0, 9.0), job("a", 1, 9.0), job("b", 0, 1.0), job("b", 1, 1.0)]
    meter = running._Meter(jobs, at_a_time=2)
    assert meter.report().left is None
    meter.on_progress(jobs[0], 0.0)
    meter.on_progress(jobs[2], 0.0)
    now[0] += 30
    meter.on_progress(jobs[0], 0.5)  # a minute a run
    meter.on_progress(jobs[2], 0.25)  # two, though it was thought to weigh less
    report = meter.report("half")
    # a: 30 s and a run of 60, b: 90 s and a run of 120, two at a time
    assert report.left == pytest.approx((30 + 60 + 90 + 120) / 2)
    assert report.share == pytest.approx(60 / (60 + 300))
    now[0] += 30
    meter.end(jobs[0])
    assert meter.report().left == pytest.approx((60 + 180 + 240) / 2), "b had no progress in that time"
    meter.on_progress(jobs[1], 0.4)  # it goes on from a checkpoint
    now[0] += 30
    meter.on_progress(jobs[1], 0.9)
    meter.end(jobs[2])
    meter.end(jobs[3])
    assert meter.report().left == pytest.approx(0.1 * 60)
    meter.end(jobs[1])
    report = meter.report()
    assert (report.left, report.share, report.done) == (0.0, 1.0, 4)


def test_a_run_that_fails_does_not_stop_the_others(table: Table, do: Do) -> None:
    e = table(
        ('method = "fedavg"', 'method = "fedavg"\nconcurrency = 5\ndelay = { name = "trace", path = "none.csv" }')
    )
    said = do(e, fine=False, seeds="1", only="a")
    assert any("fedavg, a, seed 0: failed" in s for s in said)
    assert set(results()["cells"]) == {"orthofl/a"}


def test_a_data_set_that_is_not_here_is_said_once_with_what_helps(
    table: Table, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    monkeypatch.delenv("TARRY_HUB", raising=False)
    e = table(("[columns.b]", '[columns.b]\ntask = "mnist"'))
    said = do(e, fine=False, seeds="2", workers=2)
    assert "toy/table1: mnist is not here: 4 runs left out" in said
    (told,) = [s for s in said if "Get it: " in s]
    assert told.startswith("toy/table1: fedavg, b, seed 0; ")
    assert "--task mnist: the data set is not there" in told
    assert "TARRY_HUB=1 fetches" in told
    assert "--task.hub" not in told
    assert "--task digits" not in told
    assert set(results()["cells"]) == {"fedavg/a", "orthofl/a"}


def test_a_study_that_lacks_data_is_told_no_flags_of_tarry_run(
    folder: Path, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "toy" / "fig2.toml").write_text(
        'study = "made_up"\ntitle = "t"\nwhere = "w"\nwords = "w"\nmeasures = ["seconds"]\nseeds = 1\n'
        '[measure.seconds]\nunit = "s"\n'
    )
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    monkeypatch.delenv("TARRY_HUB", raising=False)
    monkeypatch.setitem(STUDIES, "made_up", "made_up_study")
    monkeypatch.setitem(sys.modules, "made_up_study", SimpleNamespace(run=lambda *_, **__: fetch("mnist")))  # type: ignore[arg-type]
    told = do(catalog.find("toy/fig2"), fine=False)[-1]
    assert "TARRY_HUB=1 fetches" in told
    assert "--task.hub" not in told


def test_a_worker_that_dies_is_told_and_the_rest_is_run(table: Table, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = "import os, sys\ndef make():\n    '''Die.'''\n    os._exit(7)\n"
    Path("killer.py").write_text(killer)
    e = table(('method = "fedavg"', f'method = "{Path("killer.py").resolve()}:make"'))
    monkeypatch.setattr(Experiment, "problems", lambda *_: [])  # it would die here, as it is built
    said = do(e, fine=False, seeds="1", workers=2)
    assert sum("ended with code 7" in s for s in said) >= 2
    assert set(results()["cells"]) == {"orthofl/a", "orthofl/b"}


STOPPER = """
import os, signal
from tarry.methods.fedavg import fedavg

def make():
    'Stop the process the first time.'
    if not os.path.exists('FLAG'):
        open('FLAG', 'w').close()
        os.kill(os.getpid(), signal.SIGSTOP)
    return fedavg()
"""


def test_a_worker_that_is_stopped_is_replaced_and_its_run_done(
    table: Table, do: Do, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("stopper.py").write_text(STOPPER.replace("FLAG", str(tmp_path / "flag")))
    e = table(('method = "fedavg"', f'method = "{Path("stopper.py").resolve()}:make"'))
    monkeypatch.setattr(Experiment, "problems", lambda *_: [])  # it would stop here, as it is built
    monkeypatch.setattr(pool, "TIMEOUT", 5.0)
    said = do(e, seeds="1", workers=2)
    assert sum("did not respond for 5 s; another takes its place, and the run resumes" in s for s in said) == 1
    assert set(results()["cells"]) == {"fedavg/a", "fedavg/b", "orthofl/a", "orthofl/b"}


def test_a_killed_run_goes_on_from_its_checkpoint_to_the_same_weights(table: Table, do: Do, tmp_path: Path) -> None:
    long = ("time = 1500", "time = 10000\ncheckpoint_every = 0.1")
    e = table(long)
    words = ["toy/table1", "--only", "a", "--rows", "orthofl", "--seeds", "1", "--device", "cpu", "--out", "killed"]

    def checkpoints() -> list[Path]:
        return list(Path("killed").rglob("checkpoints/*.safetensors"))

    process = subprocess.Popen([sys.executable, "-m", "tarry.reproduce", *words], env={**os.environ})
    try:
        wait_until(lambda: checkpoints() or process.poll() is not None)
        there = checkpoints()
        assert process.poll() is None, "it ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not catalog.results("toy/table1").path.exists()
    do(e, only="a", rows="orthofl", seeds="1", out=Path("killed"), keep=True)
    kept = sorted(p.name for p in Path("killed").rglob("checkpoints/*.safetensors"))
    assert kept[-1] > there[0].name  # it counted on
    do(e, only="a", rows="orthofl", seeds="1", results=tmp_path / "fresh")
    fresh = json.loads((tmp_path / "fresh" / "toy" / "results" / "table1.json").read_text())
    assert digests(results()) == digests(fresh)


@pytest.mark.parametrize(
    ("number", "workers", "by"),
    [(signal.SIGTERM, "2", "SIGTERM"), (signal.SIGINT, "2", ""), (signal.SIGHUP, "1", "SIGHUP")],
)
def test_a_signal_to_all_processes_writes_checkpoints_from_which_the_same_command_goes_on(
    number: int, workers: str, by: str, table: Table, do: Do, tmp_path: Path
) -> None:
    e = table(("time = 1500", "time = 40000\ncheckpoint_every = 100000"))
    words = [
        "toy/table1",
        "--only",
        "a",
        "--rows",
        "orthofl",
        "--seeds",
        "2",
        "--device",
        "cpu",
        "--workers",
        workers,
        "--out",
        "ended",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "tarry", "reproduce", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )

    def begun() -> bool:
        rows = [log.read_bytes().count(b'"arrival"') for log in Path("ended").rglob("events.jsonl")]
        return len(rows) == int(workers) and min(rows) > 0

    wait_until(lambda: begun() or process.poll() is not None)
    family = descendants(process.pid)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, err
    assert f"error: interrupted{by and f' by {by}'}; the same command resumes: tarry reproduce toy/table1" in err
    assert "Traceback" not in err
    wait_until(lambda: all(process_ended(p) for p in family))
    assert len(list(Path("ended").rglob("checkpoints/*.safetensors"))) == int(workers)
    do(e, only="a", rows="orthofl", seeds="2", out=Path("ended"), workers=2)
    do(e, only="a", rows="orthofl", seeds="2", results=tmp_path / "fresh", workers=2)
    fresh = json.loads((tmp_path / "fresh" / "toy" / "results" / "table1.json").read_text())
    assert digests(results()) == digests(fresh)


def test_results_say_by_what_they_were_made(table: Table, do: Do) -> None:
    do(table(), only="a", rows="fedavg", seeds="1", command="tarry reproduce toy/table1 --out x --results=y --within 8")
    (made,) = results()["made"]
    assert set(made) == {"tarry", "commit", "torch", "device", "date", "command"}
    assert made["command"] == "tarry reproduce toy/table1"


def test_a_study_gets_its_options_and_its_numbers_are_kept(
    folder: Path, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "toy" / "fig2.toml").write_text(
        'study = "made_up"\ntitle = "t"\nwhere = "w"\nwords = "w"\nmeasures = ["seconds"]\nseeds = 2\n'
        '[measure.seconds]\nunit = "s"\n[study_options]\nn = 5\n[study_options.quick]\nn = 1\n'
    )
    seen: list[Any] = []

    class Study:
        @staticmethod
        def run(options: Any, *, quick: bool, seeds: Any, device: str, folder: Path, tell: Any) -> dict[str, Any]:
            seen.append((dict(options), quick, list(seeds), folder.is_dir()))
            return {"numbers": {"r": {"c": {str(s): options["n"] + s for s in seeds}}}, "notes": ["n"]}

    monkeypatch.setitem(STUDIES, "made_up", "made_up_study")
    monkeypatch.setitem(sys.modules, "made_up_study", Study)  # type: ignore[arg-type]
    e = catalog.find("toy/fig2")
    do(e)
    do(e, seeds="5-5")
    do(e, quick=True)
    assert seen == [({"n": 5}, False, [0, 1], True), ({"n": 5}, False, [5], True), ({"n": 1}, True, [0], True)]
    found = catalog.results(e.name).study(e, "full")
    assert found is not None
    assert found["numbers"] == {"r": {"c": {"0": 5, "1": 6, "5": 10}}}


def test_of_packed_experiments_results_go_beside_us_on_top_of_those_that_came_along(
    table: Table, do: Do, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = table()
    do(e, only="a", seeds="1")
    packed = folder / "toy" / "results" / "table1.json"
    before = packed.read_bytes()
    monkeypatch.delenv("TARRY_EXPERIMENTS")
    monkeypatch.setattr(catalog, "_PACKED", folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert catalog.root() == folder
    assert len(list(catalog.results("toy/table1").runs())) == 2
    do(e, only="b", seeds="1")
    assert packed.read_bytes() == before
    assert set(json.loads(Path("experiments/toy/results/table1.json").read_text())["cells"]) == {
        "fedavg/a",
        "orthofl/a",
        "fedavg/b",
        "orthofl/b",
    }
