"""Every mistake ends with exit code 2, one message that names flag and value, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tarry.record.run_folder import RunFolder


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


ONE_MISTAKE = {
    "unknown method": (["--method", "orthofk"], ["--method orthofk", "no such method", "Did you mean 'orthofl'?"]),
    "unknown task": (["--task", "digit"], ["--task digit", "Did you mean 'digits'?"]),
    "unknown partition": (["--partition", "dirichle"], ["--partition dirichle", "Did you mean 'dirichlet'?"]),
    "unknown delay": (["--delay", "orthofl-rpl"], ["--delay orthofl-rpl", "'orthofl-rpi'"]),
    "unknown parameter": (["--method.alfa", "1"], ["--method.alfa 1", "no parameter 'alfa'", "Did you mean 'alpha'?"]),
    "unknown parameter in brief": (["--method", "fedbuff:bufer=3"], ["--method.bufer 3", "Did you mean 'buffer'?"]),
    "parameter of the wrong type": (["--method.alpha", "lots"], ["--method.alpha lots", "wants float"]),
    "parameter out of range": (["--method.alpha", "-1"], ["--method.alpha -1", "above 0 and at most 1"]),
    "parameter of a choice": (["--method.staleness", "cubic"], ["--method.staleness cubic", "polynomial | constant"]),
    "missing parameter": (["--delay", "empirical"], ["--delay.path", "needs it"]),
    "setting of the wrong type": (["--lr", "fast"], ["--lr fast", "wants float"]),
    "whole number wanted": (["--clients", "2.5"], ["--clients 2.5", "wants int"]),
    "setting out of range": (["--lr", "-1"], ["--lr -1", "must be above 0"]),
    "batch of nothing": (["--batch", "0"], ["--batch 0", "1 or more"]),
    "impossible partition": (["--partition.alpha", "-0.5"], ["--partition.alpha -0.5", "must be above 0"]),
    "partition of more than there is": (["--partition.size", "1000"], ["--partition.size 1000", "at most 143 fit"]),
    "more clients than examples": (["--clients", "5000"], ["--clients 5000", "1437 training examples"]),
    "partition by groups without groups": (["--partition", "groups"], ["--partition groups", "no natural groups"]),
    "too many samples": (["--min-samples", "500"], ["--min-samples 500", "lower it"]),
    "more concurrency than clients": (["--clients", "5", "--concurrency", "6"], ["--concurrency 6", "only 5 clients"]),
    "more concurrency than ten": (["--concurrency", "11"], ["--concurrency 11", "only 10 clients"]),
    "no budget": (["--updates", "0"], ["--updates 0", "must be above 0"]),
    "target alone": (["--target", "0.9"], ["--target", "--time, --updates or --rounds"]),
    "epochs and steps": (["--epochs", "1", "--steps", "2"], ["--epochs 1 --steps 2", "one of the two"]),
    "unknown flag": (["--epoch", "3"], ["--epoch", "3", "no such flag"]),
    "a flag of a task's": (["--model", "lenet5"], ["--model lenet5: ", "no such flag. Did you mean --task.model? `"]),
    "a flag of a delay's": (["--seconds_per-sample=1"], ["no such flag. Did you mean --delay.seconds-per-sample? "]),
    "a flag of several": (["--alpha", "1"], ["no such flag. Did you mean --method.alpha or --partition.alpha? "]),
    "a flag of another method's": (["--buffer", "3"], ["no such flag. Did you mean --method.buffer? "]),
    "a flag that is near and of another": (["--epoch", "3"], ["Did you mean 'epochs', or --method.epoch? "]),
    "a flag of a method's that is none": (["--method", "x", "--eta", "3"], ["Did you mean --method.eta? "]),
    "unknown flag with equals": (["--epoch=3"], ["--epoch=3", "no such flag"]),
    "a word too many": (["orthofl"], ["orthofl"]),
    "unknown group": (["--model.hidden", "3"], ["--model.hidden", "3"]),
    "missing value": (["--lr"], ["--lr"]),
    "missing value of a parameter": (["--method.alpha"], ["--method.alpha", "a value is missing"]),
    "missing delay file": (["--delay", "empirical", "--delay.path", "no.csv"], ["--delay.path", "no.csv"]),
    "missing availability file": (["--availability", "no.csv"], ["--availability", "no.csv"]),
    "missing task file": (["--task", "npz", "--task.path", "no.npz"], ["--task.path", "no.npz"]),
    "missing method file": (["--method", "no.py:mine"], ["--method", "no.py:mine", "there is no file"]),
    "missing spec": (["--spec", "no.toml"], ["--spec no.toml", "there is no such file"]),
    "a folder as spec": (["--spec", "."], ["--spec ."]),
    "durations as text": (["--delay", "scripted", "--delay.durations", "1,2"], ["--delay.durations 1,2"]),
    "unknown device": (["--device", "abacus"], ["--device abacus"]),
    "unknown dtype": (["--dtype", "float16"], ["--dtype float16", "float32 | float64"]),
    "inline with workers": (["--executor", "inline", "--workers", "2"], ["--executor inline --workers 2"]),
}  # fmt: skip


@pytest.mark.parametrize("what", ONE_MISTAKE)
def test_one_mistake_in_a_run(cli, here, what):
    args, words = ONE_MISTAKE[what]
    said = cli("run", "--out", "new", *args)
    assert said.code == 2
    for word in words:
        assert word in said.err
    assert "Traceback" not in said.err
    assert len(said.complaints) == 1
    assert said.out == ""
    assert list(here.iterdir()) == []


def test_several_mistakes_are_told_at_once(cli, here):
    said = cli(
        "run", "--out", "new", "--method", "orthofk", "--partition.alfa", "1", "--lr", "fast", "--clients", "0",
        "--task", "digitz", "--failure-rate", "2", "--time", "-1",
    )  # fmt: skip
    assert said.code == 2
    assert len(said.complaints) == 7
    for flag in (
        "--method orthofk", "--partition.alfa 1", "--lr fast", "--clients 0", "--task digitz", "--failure-rate 2.0",
        "--time -1.0",
    ):  # fmt: skip
        assert sum(c.startswith(flag) for c in said.complaints) == 1, flag
    assert list(here.iterdir()) == []


TOML = {
    "unknown key": ("lr = 0.1\nepoch = 3\n", ["--epoch", "did you mean 'epochs'?"]),
    "wrong type": ('lr = "fast"\n', ["--lr fast", "wants float"]),
    "unknown parameter": ('[method]\nname = "orthofl"\nbet = 1\n', ["--method.bet 1", "Did you mean 'beta'?"]),
    "table without a name": ("[method]\nbeta = 1\n", ["--method", "a table needs name"]),
    "not TOML": ("lr = = 3\n", ["--spec bad.toml", "not TOML", "line 1"]),
    "not text": ("\0\1", ["--spec bad.toml", "not TOML"]),
    "a availability of no client": ('[availability]\nabc = [[0, 1]]\n', ["--availability", "abc"]),
}  # fmt: skip


@pytest.mark.parametrize("what", TOML)
def test_a_mistake_in_toml(cli, here, what):
    text, words = TOML[what]
    (here / "bad.toml").write_text(text)
    said = cli("run", "--spec", "bad.toml", "--out", "new")
    assert said.code == 2
    for word in words:
        assert word in said.err
    assert "Traceback" not in said.err
    assert len(said.complaints) == 1
    assert [p.name for p in here.iterdir()] == ["bad.toml"]


@pytest.fixture
def finished(cli, here, quick) -> Path:
    assert cli("run", *quick, "--out", "done").code == 0
    return here / "done"


def test_a_folder_that_holds_a_run_is_left_alone(cli, finished, quick):
    before = everything(finished)
    said = cli("run", *quick, "--out", "done")
    assert said.code == 2
    assert said.complaints == [
        "--out done: it holds another run; `tarry resume done` resumes it, or name another folder"
    ]
    assert everything(finished) == before


def test_a_folder_that_is_not_empty_is_left_alone(cli, here, quick):
    (here / "full").mkdir()
    (here / "full" / "thesis.txt").write_text("years of work")
    (here / "file").write_text("also work")
    before = everything(here)
    for out in ("full", "file", "file/below"):
        said = cli("run", *quick, "--out", out)
        assert said.code == 2
        assert len(said.complaints) == 1
        assert said.complaints[0].startswith(f"--out {out}: ")
        assert "name another" in said.complaints[0]
    assert everything(here) == before


def test_an_empty_folder_may_be_used(cli, here, quick):
    (here / "empty").mkdir()
    assert cli("run", *quick, "--out", "empty").code == 0
    assert (here / "empty" / "result.json").is_file()


def test_resuming_nothing(cli, here):
    (here / "bare").mkdir()
    for folder in ("bare", "nowhere"):
        said = cli("resume", folder)
        assert said.code == 2
        assert said.complaints == [f"{folder}: there is no run here (no spec.toml)"]
    assert [p.name for p in here.rglob("*")] == ["bare"]


def test_resuming_a_comparison_says_how(cli, here, quick):
    assert cli("compare", "--method", "fedavg", "--seeds", "0", *quick, "--out", "c").code == 0
    before = everything(here)
    said = cli("resume", "c")
    assert said.code == 2
    command = f"cd {here} && tarry compare --method fedavg --seeds 0 {' '.join(quick)} --out c"
    assert said.complaints == [f"c: it holds a comparison; this resumes it: {command}"]
    assert everything(here) == before
    (here / "c" / "command.txt").unlink()  # as in a folder of an older version
    said = cli("resume", "c")
    assert said.complaints == ["c: it holds a comparison; the same `tarry compare` with --out c resumes it"]


def test_resuming_from_a_damaged_checkpoint_changes_nothing(cli, here, quick):
    assert cli("run", *quick, "--out", "r", "--checkpoint-every", "1e-9").code == 0
    (here / "r" / "result.json").unlink()
    newest = max((here / "r" / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[-3] ^= 0xFF
    newest.write_bytes(bytes(content))
    before = everything(here)
    said = cli("resume", "r")
    assert said.code == 2
    assert len(said.complaints) == 1
    assert str(newest.relative_to(here)) in said.complaints[0]
    assert "delete it to go on from" in said.complaints[0]
    assert everything(here) == before


def test_resuming_a_run_whose_log_is_gone_changes_nothing(cli, here, quick):
    assert cli("run", *quick, "--out", "r", "--checkpoint-every", "1e-9").code == 0
    (here / "r" / "result.json").unlink()
    (here / "r" / "events.jsonl").write_bytes(b"")
    before = everything(here)
    said = cli("resume", "r")
    assert said.code == 2
    assert "events.jsonl" in said.err
    assert everything(here) == before


def test_resuming_a_run_of_python_objects_says_how(cli, here):
    (here / "r").mkdir()
    RunFolder(here / "r").write_settings("# task: a Python object (mine)\nlr = 0.1\n", objects=["task"], files={})
    said = cli("resume", "r")
    assert said.code == 2
    assert "given a Python object as task" in said.err
    assert "tarry.resume('r', task=...)" in said.err


def test_reports_of_nothing_and_of_an_unfinished_run(cli, here, finished):
    (finished / "result.json").unlink()
    before = everything(here)
    said = cli("report", "done")
    assert said.code == 2
    assert said.complaints == ["done: no finished run is here (no result.json)"]
    said = cli("report", "nowhere")
    assert (said.code, said.complaints) == (2, ["nowhere: there is no such folder"])
    assert everything(here) == before


def test_a_report_of_a_damaged_result(cli, here, finished):
    (finished / "result.json").write_text("{")
    said = cli("report", "done")
    assert said.code == 2
    assert "result.json cannot be read" in said.err
    assert not (here / "report.html").exists()


def test_a_baseline_that_is_not_there_is_refused(cli, here, finished):
    said = cli("report", "done", "--baseline", "nosuch")
    assert (said.code, len(said.complaints)) == (2, 1)
    assert "--baseline nosuch" in said.err
    assert "Known: fedasync." in said.err
    assert not (here / "report.html").exists()


def test_a_page_that_cannot_be_written_is_said(cli, here, finished):
    said = cli("report", "done", "--html", "done/result.json/page.html")
    assert said.code == 2
    assert "--html done/result.json/page.html" in said.err
    assert "Traceback" not in said.err


COMPARE = {
    "unknown method": (["--method", "fedavgg"], ["--method fedavgg", "Did you mean 'fedavg'"]),
    "twice the same": (["--method", "fedavg", "--method", "fedavg"], ["--method fedavg", "there twice"]),
    "seeds that are none": (["--seeds", "a-b"], ["--seeds a-b", "how many (3), or which (5-7 or 0,4)"]),
    "seeds that run backwards": (["--seeds", "2-0"], ["--seeds 2-0: 2-0 runs backwards; say 0-2"]),
    "no workers": (["--workers", "0"], ["--workers 0", "1 or more"]),
    "parameter of which method": (["--method", "orthofl", "--method.beta", "1"], ["--method.beta", "which method?"]),
    "unknown flag": (["--epoch", "3"], ["--epoch", "3", "no such flag"]),
    "a flag of a method's": (["--buffer", "3"], ["no such flag. Did you mean --method NAME:buffer=VALUE? `--help"]),
    "a flag of a task's": (["--model", "lenet5"], ["no such flag. Did you mean --task.model? "]),
    "the run's seed": (["--seed", "3"], ["--seed 3", "Did you mean 'seeds'?"]),
    "an optimizer that one of them cannot use": (
        ["--method", "fedavg", "--method", "scaffold", "--optimizer", "adam"],
        ["--optimizer adam", "(--method scaffold)"],
    ),
    "a setting that nobody can use": (["--method", "all", "--lr", "fast"], ["--lr fast: wants float, got 'fast'\n"]),
    "a method among all that does not fit": (
        ["--method", "all", "--method", "scaffold", "--optimizer", "adam"],
        ["--optimizer adam", "(--method scaffold)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", COMPARE)
def test_one_mistake_in_a_comparison(cli, here, what):
    args, words = COMPARE[what]
    said = cli("compare", "--out", "new", *args)
    assert said.code == 2
    for word in words:
        assert word in said.err
    assert "Traceback" not in said.err
    assert len(said.complaints) == 1
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("command", ["methods", "tasks", "delays", "partitions"])
def test_showing_what_is_not_there(cli, command):
    said = cli(command, "nothing-of-the-kind")
    assert said.code == 2
    assert len(said.complaints) == 1
    assert said.complaints[0].startswith(f"--{command[:-1]} nothing-of-the-kind: there is no such {command[:-1]}.")


def test_a_command_that_is_none(cli):
    said = cli("rum")
    assert said.code == 2
    assert "rum" in said.err


MINE = {
    "does not import": ("import nobody_has_this\n", "does not import: ModuleNotFoundError"),
    "no such factory": ("def other():\n    return None\n", "has no factory 'mine'"),
    "not a method": ("def mine():\n    return 'orthofl'\n", "mine"),
}


@pytest.mark.parametrize("what", MINE)
def test_a_mistake_in_a_method_of_ones_own(cli, here, what):
    text, words = MINE[what]
    (here / "own.py").write_text(text)
    said = cli("run", "--method", "own.py:mine", "--out", "new")
    assert said.code == 2
    assert "--method own.py:mine" in said.err.replace(str(here) + "/", "")
    assert words in said.err
    assert "Traceback" not in said.err
    assert not (here / "new").exists()


def test_a_client_that_diverges_under_strict_is_told_with_a_way_out(cli, here, quick):
    said = cli("run", *quick, "--lr", "1e38", "--strict", "--out", "r")
    assert said.code == 2
    assert len(said.complaints) == 1
    assert "not finite" in said.complaints[0]
    assert "--lr" in said.complaints[0]


def test_without_strict_such_updates_are_refused_and_the_run_ends(cli, here, quick):
    assert cli("run", *quick, "--lr", "1e38", "--time", "100", "--out", "r").code == 0
    raw = json.loads((here / "r" / "result.json").read_text())
    assert raw["rejected"] > 0
