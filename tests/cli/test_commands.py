from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from html import escape
from importlib import import_module
from pathlib import Path

import pytest

import tarry
from tarry.cli.watch import LogReader
from tarry.config.spec import settings
from tarry.delays.base import delays
from tarry.methods import methods
from tarry.record.result import Result
from tarry.record.rows import Log
from tarry.record.run_folder import RunFolder
from tarry.tasks import partitions, tasks
from tarry.tasks.models import models
from tarry.training.schedules import schedules
from tests.helpers.processes import PATIENCE


def test_the_version(cli):
    assert cli("--version") == (0, f"tarry {tarry.__version__}\n", "")


def test_help_of_every_command(cli):
    said = cli("--help")
    assert said.code == 0
    for command in ("run", "compare", "resume", "report", "demo", "methods", "tasks", "delays", "partitions"):
        assert command in said.out
        assert cli(command, "--help").code == 0
        assert cli(command, "-h").out == cli(command, "--help").out


@pytest.mark.parametrize("command", ["run", "compare"])
def test_help_tells_of_every_setting_with_its_default(cli, command):
    text = " ".join(cli(command, "--help").out.split())
    left_out = {"method", "seed", "workers", "executor", "axes"} if command == "compare" else set()
    for name, param in settings().items():
        if name not in left_out:
            assert f"--{name.replace('_', '-')} " in text
            assert " ".join(param.help.split()[:2]) in text
    assert "[default: 0.05]" in text


def test_a_run_tells_what_came_of_it(cli, here, quick):
    said = cli("run", "--method", "orthofl", *quick, "--seed", "3", "--out", "r")
    assert said.code == 0
    assert "Traceback" not in said.err
    result = Result.read(here / "r")
    assert (result.method, result.seed, result.updates) == ("orthofl", 3, 6)
    words = " ".join(said.out.split())
    assert f"accuracy {result.final_accuracy:.4f}" in words
    assert "6 updates" in words
    assert re.search(r"; \d+\.\d kB up, \d+\.\d kB down, server at most \d+\.\d kB; ", words)
    assert "on digits, seed 3" in words


def test_fingerprint_and_folder_stand_on_one_line_however_narrow_the_terminal(cli, here, quick, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    name = "a-folder-with-quite-a-long-name-that-somebody-may-want-to-copy"
    said = cli("run", *quick, "--out", name)
    assert f"weights sha256 {Result.read(here / name).weights_sha256}\n" in said.out
    assert f"in {name}\n" in said.out


def test_a_folder_with_brackets_in_its_name_is_told_as_it_is(cli, here, quick):
    said = cli("run", *quick, "--out", "lr[low]")
    assert said.code == 0
    assert "lr[low]" in said.out
    assert (here / "lr[low]" / "result.json").is_file()


def test_a_run_without_a_folder_writes_nothing(cli, here, quick):
    assert cli("run", *quick).code == 0
    assert list(here.iterdir()) == []


def test_flags_and_python_come_to_the_same_weights(cli, here, quick):
    assert cli("run", "--method", "fedbuff:buffer=2", *quick, "--out", "r").code == 0
    result = tarry.run(
        {"name": "fedbuff", "buffer": 2},
        {"name": "digits", "limit": 200, "hidden": 8},
        clients=4,
        epochs=1,
        delay="constant",
        updates=6,
    )
    assert Result.read(here / "r").weights_sha256 == result.weights_sha256


SPEC = """
method = "orthofl"
lr = 0.1
clients = 4
epochs = 1
updates = 6
seed = 7
strict = true
batch = "all"

[task]
name = "digits"
limit = 200
hidden = 8

[delay]
name = "constant"
seconds = 2.5
"""
AS_FLAGS = [
    "--method", "orthofl", "--lr", "0.1", "--clients", "4", "--epochs", "1", "--updates", "6", "--seed", "7",
    "--strict", "--batch", "all", "--task", "digits", "--task.limit", "200", "--task.hidden", "8",
    "--delay", "constant", "--delay.seconds", "2.5",
]  # fmt: skip


def test_toml_and_flags_make_the_same_resolved_spec(cli, here):
    (here / "spec.toml").write_text(SPEC)
    assert cli("run", "--spec", "spec.toml", "--out", "toml").code == 0
    assert cli("run", *AS_FLAGS, "--out", "flags").code == 0
    assert Result.read(here / "toml").weights_sha256 == Result.read(here / "flags").weights_sha256
    assert (here / "toml" / "spec.toml").read_text() == (here / "flags" / "spec.toml").read_text()


def test_flags_win_over_toml_and_leave_the_rest_of_it(cli, here):
    (here / "spec.toml").write_text(SPEC)
    flags = ["--lr", "0.02", "--task.hidden", "4", "--method", "fedasync:alpha=0.5", "--method.a", "1"]
    assert cli("run", "--spec", "spec.toml", *flags, "--out", "r").code == 0
    got = tomllib.loads((here / "r" / "spec.toml").read_text())
    assert (got["lr"], got["strict"], got["seed"], got["batch"]) == (0.02, True, 7, "all")
    assert {k: str(v) for k, v in got["task"].items()} == {"name": "digits", "limit": "200", "hidden": "4"}
    assert got["method"]["name"] == "fedasync"
    assert (float(got["method"]["alpha"]), float(got["method"]["a"])) == (0.5, 1.0)
    assert got["delay"] == {"name": "constant", "seconds": 2.5}


def test_a_switch_that_is_on_in_toml_can_be_turned_off_by_a_flag(cli, here):
    (here / "spec.toml").write_text(SPEC)
    assert cli("run", "--spec", "spec.toml", "--no-strict", "--out", "r").code == 0
    assert tomllib.loads((here / "r" / "spec.toml").read_text())["strict"] is False


def test_the_spec_a_run_leaves_behind_repeats_it(cli, here, quick):
    assert cli("run", *quick, "--method", "orthofl:beta=0.3", "--failure-rate", "0.2", "--out", "a").code == 0
    assert cli("run", "--spec", "a/spec.toml", "--out", "b").code == 0
    for name in ("spec.toml", "events.jsonl", "arrivals.csv", "model.safetensors"):
        assert (here / "a" / name).read_bytes() == (here / "b" / name).read_bytes()


def test_a_negative_value_is_a_value_and_not_a_flag(cli):
    assert "--method.alpha -0.5: must be above 0" in cli("run", "--method.alpha", "-0.5").err
    assert "--method.alpha -0.5: must be above 0" in cli("run", "--method.alpha=-0.5").err


def test_a_name_with_a_dash_may_be_written_with_a_dash_or_an_underline(cli, here, quick):
    said = cli("run", *quick, "--delay", "bandwidth", "--delay.down-mbps", "5", "--delay.up_mbps", "0", "--out", "r")
    assert said.code == 2
    assert said.complaints == ["--delay.up_mbps 0.0: must be from 1e-09 to 1e+15"]


OWN = '''
"""A method in one file."""
from typing import Annotated

from tarry import Method, stateless


def timid(*, share: Annotated[float, "how much of a delta counts"] = 0.5) -> Method:
    """Take only a share of every update.

    Written in a test.
    """
    return Method("timid", staleness="ignored", step=stateless(lambda update, now: now.weights + share * update.delta))


timid.paper = "Nobody 2026"
'''


def test_a_method_of_ones_own_runs_from_its_file(cli, here, quick):
    (here / "own.py").write_text(OWN)
    said = cli("run", "--method", "own.py:timid", "--method.share", "0.25", *quick, "--out", "r")
    assert said.code == 0
    result = Result.read(here / "r")
    assert (result.method, result.label) == ("timid", "timid:share=0.25")
    assert cli("run", "--method", "own.py:timid", "--method.share", "1", *quick, "--out", "s").code == 0
    assert Result.read(here / "s").weights_sha256 != result.weights_sha256
    said = cli("methods", "own.py:timid")
    assert said.code == 0
    for words in ("Take only a share", "Nobody 2026", "--method.share", "default 0.5", "how much of a delta counts"):
        assert words in said.out


def test_a_method_of_ones_own_goes_into_a_comparison(cli, here, quick):
    (here / "own.py").write_text(OWN)
    said = cli(
        "compare", "--method", "own.py:timid:share=0.9", "--method", "fedavg", *quick, "--seeds", "0", "--out", "c"
    )  # fmt: skip
    assert said.code == 0
    assert {p.parent.parent.name for p in (here / "c").rglob("result.json")} == {"timid-share=0.9", "fedavg"}


REGISTRIES = {
    "methods": methods,
    "tasks": tasks,
    "models": models,
    "delays": delays,
    "partitions": partitions,
    "schedules": schedules,
}


def flag(registry, p):
    return f"--{'task' if registry is models else 'lr-schedule' if registry is schedules else registry.kind}.{p.name}"


@pytest.mark.parametrize("command", REGISTRIES)
def test_a_listing_shows_every_entry_in_a_few_lines_with_paper_and_parameters(cli, command):
    registry = REGISTRIES[command]
    said = cli(command)
    assert said.code == 0
    for name in registry:
        entry = registry[name]
        assert re.search(rf"^{re.escape(name)}  {re.escape(entry.summary)}$", said.out, re.M), name
        assert entry.paper in said.out
        assert entry.use in said.out
        flags = "  ".join(flag(registry, p) for p in entry.params)
        assert not flags or f"\n    {flags}\n" in said.out


@pytest.mark.parametrize("command", REGISTRIES)
def test_one_entry_is_shown_in_full(cli, command):
    registry = REGISTRIES[command]
    for name in registry:
        entry = registry[name]
        said = cli(command, name)
        assert said.code == 0
        for line in entry.doc.splitlines():
            assert line.strip() in said.out
        for p in entry.params:
            assert f"{flag(registry, p)}  {p.type_name}, " in said.out
            assert p.help in said.out
            assert ("needed" if p.required else f"default {p.default}") in said.out
        others = [n for n in registry if n != name]
        assert not any(re.search(rf"^{re.escape(n)}  ", said.out, re.M) for n in others)


@pytest.fixture
def runs(cli, here, quick) -> Path:
    for method in ("fedavg", "orthofl"):
        for seed in ("0", "1"):
            args = ["--method", method, "--seed", seed, "--out", f"runs/{method}/{seed}"]
            assert cli("run", *quick, *args).code == 0
    return here / "runs"


def test_a_report_of_a_folder_of_runs(cli, here, runs):
    said = cli("report", "runs")
    assert said.code == 0
    assert "fedavg" in said.out
    assert "orthofl" in said.out
    page = (here / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "<svg" in page
    assert "fedavg" in page
    assert "orthofl" in page


def test_a_report_as_markdown_of_chosen_folders_to_a_chosen_page(cli, here, runs):
    said = cli("report", "runs/fedavg", "runs/orthofl/1", "--markdown", "--baseline", "orthofl", "--html", "x.html")
    assert said.code == 0
    rows = [line for line in said.out.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert (here / "x.html").is_file()
    assert not (here / "report.html").exists()


def test_the_same_run_twice_in_a_report_is_refused(cli, runs):
    said = cli("report", "runs", "runs/fedavg/0")
    assert said.code == 2
    assert "fedavg with seed 0 is there twice" in said.err


def test_a_comparison_leaves_a_table_a_page_and_a_record(cli, here, quick, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    args = ["--method", "fedavg", "--method", "fedbuff:buffer=2", "--seeds", "0,2", *quick, "--out", "c"]
    said = cli("compare", *args)
    assert said.code == 0
    assert "fedbuff:buffer=2" in said.out
    found = sorted(str(p.parent.relative_to(here / "c")) for p in (here / "c").rglob("result.json"))
    assert found == ["fedavg/seed-0", "fedavg/seed-2", "fedbuff-buffer=2/seed-0", "fedbuff-buffer=2/seed-2"]
    assert [r["label"] for r in json.loads((here / "c" / "compare.json").read_text())["rows"]] == [
        "fedavg",
        "fedbuff:buffer=2",
    ]
    page = (here / "c" / "report.html").read_text()
    assert "tarry compare --method fedavg" in page
    before = {p: p.stat().st_mtime_ns for p in (here / "c").rglob("result.json")}
    assert cli("compare", *args).code == 0
    assert {p: p.stat().st_mtime_ns for p in (here / "c").rglob("result.json")} == before


@pytest.mark.parametrize(
    ("text", "wanted"), [("0", {0}), ("2", {0, 1}), ("2-2", {2}), ("2,", {2}), ("1-2", {1, 2}), ("0,4", {0, 4})]
)
def test_seeds_of_a_comparison_are_how_many_or_which(cli, here, quick, text, wanted):
    assert cli("compare", "--method", "fedavg", "--seeds", text, *quick, "--workers", "1", "--out", "c").code == 0
    assert {Result.read(p.parent).seed for p in (here / "c").rglob("result.json")} == wanted


def test_a_comparison_from_toml_with_methods_and_flags_over_it(cli, here):
    (here / "c.toml").write_text('methods = ["fedavg", "orthofl"]\n' + SPEC.replace('method = "orthofl"\n', ""))
    assert cli("compare", "--spec", "c.toml", "--seeds", "0", "--updates", "4", "--out", "c").code == 0
    results = [Result.read(p.parent) for p in sorted((here / "c").rglob("result.json"))]
    assert [(r.method, r.updates, r.seed) for r in results] == [("fedavg", 4, 0), ("orthofl", 4, 0)]


def test_a_comparison_in_a_folder_with_other_settings_is_refused_and_changes_nothing(cli, here, quick):
    args = ["compare", "--method", "fedavg", "--method", "fedasync", "--seeds", "0", *quick, "--out", "c"]
    assert cli(*args).code == 0
    before = (here / "c" / "fedavg" / "seed-0" / "result.json").read_bytes()
    said = cli(*args, "--lr", "0.5")
    assert said.code == 2
    other = "it holds fedavg, seed 0, with other settings (lr 0.05 there, 0.5 here); name another folder with --out"
    assert said.complaints == [f"--out c: {other}"]
    assert (here / "c" / "fedavg" / "seed-0" / "result.json").read_bytes() == before
    assert cli(*args[:-2]).code == 0
    assert cli(*args[:-2], "--lr", "0.5").complaints == [f"--out tarry-compare (the default folder): {other}"]


def test_one_method_that_hardly_moves_makes_a_page_too(cli, here, quick):
    """The target lies below its whole curve; the picture has to make room for it."""
    said = cli("compare", "--method", "fedavg", "--seeds", "0", *quick, "--out", "c")
    assert said.code == 0
    assert "<svg" in (here / "c" / "report.html").read_text()


def test_resuming_a_finished_run_tells_its_result_again(cli, here, quick):
    first = cli("run", *quick, "--out", "r")
    result = (here / "r" / "result.json").read_bytes()
    said = cli("resume", "r")
    assert said.code == 0
    assert said.out == first.out
    assert (here / "r" / "result.json").read_bytes() == result


def test_a_run_goes_on_with_another_executor(cli, here, quick):
    """It began on a cluster that is no longer there."""
    cli("run", *quick, "--out", "r")
    result = here / "r" / "result.json"
    weights = json.loads(result.read_text())["weights_sha256"]
    result.unlink()
    folder = RunFolder(here / "r")
    shutil.rmtree(folder.proofs)  # of a run with other settings
    folder.write_settings('executor = "ray"\naddress = "10.0.0.9:6379"\n' + folder.spec.read_text(), files={})
    for flags in (["--executor", "inline"], ["--executor", "pool", "--workers", "2"]):
        said = cli("resume", "r", *flags)
        assert said.code == 0
        assert json.loads(result.read_text())["weights_sha256"] == weights
        result.unlink()
    said = cli("resume", "r", "--executor", "inlin")
    assert said.code == 2
    assert "--executor inlin" in said.err
    said = cli("resume", "r", "--executor", "inline", "--address", "auto")
    assert said.code == 2
    assert "--address" in said.err


def test_the_demo_compares_four_methods(cli, here, monkeypatch):
    from tarry.cli import demo

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setitem(demo.DEMO, "time", 300.0)
    said = cli("demo", "--seeds", "1", "--workers", "1")
    assert said.code == 0
    for label in ("fedavg", "fedasync", "fedbuff:buffer=3", "orthofl"):
        assert label in said.out
    assert (here / "tarry-demo" / "report.html").is_file()
    assert said.out.startswith("Ten simulated clients as slow as Raspberry Pis learn ")
    *_, heading, first, second = said.out.splitlines()
    assert heading == "try next:"
    for line in (first, second):
        assert line.startswith("    tarry ")
        assert cli(*line.split()[1:]).code == 0


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(cli, quick, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tarry.runs.run.run_spec", interrupted)
    said = cli("run", *quick, "--out", "my run")
    assert said.code == 130
    assert said.complaints == ["interrupted; it had not begun; the same command begins it"]
    Path("my run").mkdir()
    Path("my run/spec.toml").touch()
    said = cli("run", *quick, "--out", "my run")
    assert said.complaints == ["interrupted; `tarry resume 'my run'` resumes it"]
    assert "Traceback" not in said.err
    assert cli("run", *quick).complaints == ["interrupted; nothing of it is saved: it had no --out"]


POISON = """
import os, signal, torch, tarry

HERE = os.getpid()

def loss(out, y):
    if os.getpid() != HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.nn.functional.cross_entropy(out, y)

def mine():
    clients = [(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))] * 3
    return tarry.Task("mine", lambda: torch.nn.Linear(2, 2), loss, clients, clients[0])
"""


def test_a_run_whose_training_processes_die_again_and_again_says_how_to_go_on(cli, here):
    (here / "mine.py").write_text(POISON)
    said = cli("run", "--task", "mine.py:mine", "--workers", "2", "--updates", "6", "--out", "my run")
    assert said.code == 2
    (told,) = said.complaints
    assert told.startswith("3 training processes in a row were lost (code -9) while they trained client ")
    assert told.endswith("Fewer --workers take less of it; its record is kept; `tarry resume 'my run'` resumes it")
    said = cli("resume", "my run", "--executor", "inline", "--workers", "1")
    assert said.code == 0


INTERRUPTED = """
import atexit, os, signal, sys, time
from tarry.runs import run
from tarry.cli.app import main

def interrupted(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

def at_the_end():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

atexit.register(at_the_end)
run.run_spec = interrupted
sys.argv = ["tarry", "run", "--out", "r"]
main()
"""


def test_a_second_ctrl_c_ends_at_once_and_says_nothing(here):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=here
    )
    assert done.stderr == "error: interrupted; it had not begun; the same command begins it\n"
    assert done.returncode == -signal.SIGINT


def test_ctrl_c_in_a_comparison_advises_the_same_command_which_really_goes_on(cli, here, quick, monkeypatch):
    room = import_module("tarry.runs.jobs")
    whole = room.run_spec

    def only_fedavg(spec, **how):
        if spec.label == "fedasync":
            raise KeyboardInterrupt
        return whole(spec, **how)

    monkeypatch.setattr(room, "run_spec", only_fedavg)
    args = ["compare", "--method", "fedavg", "--method", "fedasync", "--seeds", "0", *quick, "--workers", "1"]
    said = cli(*args, "--out", "c")
    assert said.code == 130
    (advice,) = said.complaints
    command = advice.partition(": ")[2]
    assert command == "tarry " + " ".join([*args, "--out", "c"])
    assert cli("resume", "c").complaints[0].endswith(f": cd {here} && {command}")
    before = (here / "c" / "fedavg" / "seed-0" / "result.json").stat().st_mtime_ns
    monkeypatch.setattr(room, "run_spec", whole)
    assert cli(*command.split()[1:]).code == 0
    assert (here / "c" / "fedasync" / "seed-0" / "result.json").is_file()
    assert (here / "c" / "fedavg" / "seed-0" / "result.json").stat().st_mtime_ns == before


def test_why_clients_of_a_comparison_are_not_trained_together_is_told_under_the_table_and_on_the_page(cli, here, quick):
    (here / "mine.py").write_text(POISON.replace("os.getpid() != HERE", "float(out.detach().sum()) > 1e9"))
    args = ["--method", "fedavg", "--method", "fedasync", "--seeds", "0", "--updates", "4", "--executor", "batched"]
    said = cli("compare", *args, "--task", "mine.py:mine", "--out", "c")
    assert said.code == 0
    (line,) = [line for line in said.out.splitlines() if "not trained together" in line]
    assert line.startswith("fedavg, fedasync: clients are not trained together: ")
    told = Result.read(here / "c" / "fedavg" / "seed-0").executor_info
    assert line == f"fedavg, fedasync: {told}"
    assert escape(line) in (here / "c" / "report.html").read_text()
    assert cli("compare", *args[:-2], *quick, "--out", "d").code == 0
    assert "trained together" not in (here / "d" / "report.html").read_text()


def test_all_methods_are_compared_but_those_that_do_not_fit(cli, here, quick, monkeypatch):
    monkeypatch.setattr(methods, "_entries", {name: methods[name] for name in ("fedasync", "fednova", "scaffold")})
    said = cli("compare", "--method", "all", "--optimizer", "adam", "--seeds", "0", *quick, "--out", "c")
    assert said.code == 0
    told = [line.partition(" is left out: --optimizer adam: ")[0] for line in said.out.splitlines()[:2]]
    assert told == ["fednova", "scaffold"]
    assert [p.name for p in (here / "c").iterdir() if p.is_dir()] == ["fedasync"]
    assert "fednova is left out" in (here / "c" / "report.html").read_text()


def test_watch_tells_every_evaluation_and_how_it_ended(cli, here, quick):
    assert cli("run", "--method", "fedasync", *quick, "--out", "r").code == 0
    said = cli("watch", "r")
    assert said.code == 0
    rows = [json.loads(line) for line in (here / "r/events.jsonl").read_text().splitlines()]
    scores = [r for r in rows if r["kind"] == "evaluate"]
    assert len(scores) > 1
    assert sum(f"accuracy {r['accuracy']:.4f}" in said.out for r in scores) == len(scores)
    result = json.loads((here / "r/result.json").read_text())
    assert f"it is over: {result['updates']} updates" in said.out


def test_watch_goes_on_from_where_it_read_and_begins_again_where_a_run_was_taken_up(tmp_path):
    log = tmp_path / "events.jsonl"
    told = LogReader(log)

    def write(*updates: int) -> None:
        rows = Log(log)
        for n in updates:
            rows.append({"kind": "evaluate", "time": float(n), "version": 0, "updates": n, "accuracy": 0.5})
        rows.close()

    write(1)
    assert len(told.read()) == 1
    assert told.read() == []
    write(1, 2, 3)
    assert [line.split()[0] for line in told.read()] == ["2", "3"]
    write(1, 2)
    assert len(told.read()) == 2
    assert told.kinds["evaluate"] == 2
    write(1, 4, 5, 6)  # resumed from an earlier checkpoint, and longer than what was read
    assert len(told.read()) == 4
    assert told.kinds["evaluate"] == 4


def test_watch_says_where_nothing_is_at_work(cli):
    said = cli("watch", ".")
    assert said.code == 2
    assert "events.jsonl" in said.err
