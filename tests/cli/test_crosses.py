"""Crosses on the command line: one method's server with parts of others."""

from __future__ import annotations

import json
import tomllib

import pytest

import tarry
from tarry.record.result import Result

SAYINGS = {
    "flags": [
        "--method", "orthofl", "--method.beta", "0.4", "--local", "fedsol", "--local.rho", "1",
        "--distill", "fedecho", "--distill.lr=0.01",
    ],
    "flags for method": [
        "--method", "orthofl:beta=0.4", "--local", "fedsol:rho=1", "--distill", "fedecho:lr=0.01",
    ],
    "compact": ["--method", "orthofl:beta=0.4+local=fedsol:rho=1+distill=fedecho:lr=0.01"],
    "both": ["--method", "orthofl:beta=0.4+local=fedsol:rho=1", "--distill", "fedecho", "--distill.lr", "0.01"],
    "parameters of a compact server": [
        "--method", "orthofl+local=fedsol:rho=1+distill=fedecho:lr=0.01", "--method.beta", "0.4",
    ],
}  # fmt: skip
LABEL = "orthofl:beta=0.4+local=fedsol:rho=1.0+distill=fedecho:lr=0.01"
TOML = """
method = "orthofl:beta=0.4"

[local]
name = "fedsol"
rho = 1.0

[distill]
name = "fedecho"
lr = 0.01
"""
SMALL = ["--unlabeled", "noise", "--unlabeled.samples", "20"]


@pytest.fixture(scope="module")
def expected() -> str:
    """The weights of the same cross, run from Python."""
    return tarry.run(
        "orthofl:beta=0.4",
        {"name": "digits", "limit": 200, "hidden": 8},
        local={"name": "fedsol", "rho": 1},
        distill={"name": "fedecho", "lr": 0.01},
        unlabeled="noise:samples=20",
        clients=4,
        epochs=1,
        delay="constant",
        updates=6,
    ).weights_sha256


@pytest.mark.parametrize("how", SAYINGS)
def test_however_it_is_said_it_is_the_same_run(cli, here, quick, expected, how):
    said = cli("run", *SAYINGS[how], *quick, *SMALL, "--out", "r")
    assert said.code == 0, said.err
    assert LABEL in said.out
    result = Result.read(here / "r")
    assert (result.label, result.weights_sha256) == (LABEL, expected)


def test_toml_says_it_too_and_flags_go_over_it(cli, here, quick, expected):
    (here / "cross.toml").write_text(TOML)
    assert cli("run", "--spec", "cross.toml", *quick, *SMALL, "--out", "r").code == 0
    assert (Result.read(here / "r").label, Result.read(here / "r").weights_sha256) == (LABEL, expected)
    flags = ["--local.rho", "0.5", "--distill", "fedecho:q=1"]
    assert cli("run", "--spec", "cross.toml", *flags, *quick, *SMALL, "--out", "s").code == 0
    assert Result.read(here / "s").label == "orthofl:beta=0.4+local=fedsol:rho=0.5+distill=fedecho:q=1"


def test_the_spec_that_a_cross_leaves_behind_repeats_it(cli, here, quick, expected):
    assert cli("run", *SAYINGS["flags"], *quick, *SMALL, "--out", "a").code == 0
    left = tomllib.loads((here / "a" / "spec.toml").read_text())
    assert left["method"] == {"name": "orthofl", "beta": 0.4}
    assert left["local"] == {"name": "fedsol", "rho": 1.0}
    assert left["distill"] == {"name": "fedecho", "lr": 0.01}
    assert "server" not in left
    assert cli("run", "--spec", "a/spec.toml", "--out", "b").code == 0
    for name in ("spec.toml", "events.jsonl", "model.safetensors"):
        assert (here / "a" / name).read_bytes() == (here / "b" / name).read_bytes()


def test_a_cross_of_four(cli, here, quick):
    args = ["--method", "fedbuff:buffer=2", "--correct", "orthograd", "--reply", "orthofl", "--step", "fedasync"]
    assert cli("run", *args, *quick, "--out", "r").code == 0
    assert Result.read(here / "r").label == "fedbuff:buffer=2+correct=orthograd+step=fedasync+reply=orthofl"


GEODESIC = """
def frozen():
    '''Stay where you are.'''
    return lambda start, end, t, update: start
"""


def test_a_geodesic_of_ones_own_is_used(cli, here, quick):
    (here / "mine.py").write_text(GEODESIC)
    digests = set()
    for updates in ("1", "6"):
        args = ["--method", "asgd", "--manifold", "./mine.py:frozen", *quick, "--updates", updates]
        assert cli("run", *args, "--out", updates).code == 0
        assert Result.read(here / updates).label == "asgd+manifold=frozen"
        digests.add(Result.read(here / updates).weights_sha256)
    assert len(digests) == 1, "the global stays where it is"


def test_a_comparison_of_crosses_has_a_folder_and_a_row_each(cli, here, quick, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    crosses = ["orthofl+local=fedprox:mu=2", "fedbuff:buffer=2+reply=orthofl"]
    labels = ["orthofl+local=fedprox:mu=2.0", "fedbuff:buffer=2+reply=orthofl"]
    methods = [word for cross in crosses for word in ("--method", cross)]
    said = cli("compare", *methods, "--seeds", "0", *quick, "--out", "c")
    assert said.code == 0
    assert labels[0] in said.out.split()
    assert [r["label"] for r in json.loads((here / "c" / "compare.json").read_text())["rows"]] == labels
    results = [Result.read(p.parent) for p in sorted((here / "c").rglob("result.json"))]
    assert sorted(r.label for r in results) == sorted(labels)
    page = (here / "c" / "report.html").read_text()
    assert all(label in page for label in labels)


def test_the_settings_that_a_page_says_all_runs_share_are_shared(cli, here, quick):
    """A part of the first method is none of the second's."""
    assert cli(
        "compare", "--method", "orthofl+local=fedprox", "--method", "fedavg", "--seeds", "0", *quick, "--out", "c"
    ).code == 0  # fmt: skip
    page = (here / "c" / "report.html").read_text()
    assert '<th scope="row">clients</th>' in page
    assert '<th scope="row">local</th>' not in page


def test_a_part_may_be_given_to_all_methods_of_a_comparison(cli, here, quick):
    args = ["--method", "orthofl", "--method", "fedavg", "--local", "fedprox", "--local.mu", "2", "--seeds", "0"]
    assert cli("compare", *args, *quick, "--out", "c").code == 0
    labels = [r["label"] for r in json.loads((here / "c" / "compare.json").read_text())["rows"]]
    assert labels == ["orthofl+local=fedprox:mu=2.0", "fedavg+local=fedprox:mu=2.0"]


def test_long_labels_are_told_whole_on_a_narrow_terminal(cli, quick, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    crosses = ["orthofl+local=fedprox:mu=2", "fedavg+local=fedprox"]
    said = cli("compare", *[w for c in crosses for w in ("--method", c)], "--seeds", "0", *quick, "--out", "c")
    note = " ".join(said.out.partition("Target:")[2].split())
    assert "95 % of the lowest final accuracy " in note
    assert note.partition(" (")[2].startswith(("orthofl+local=fedprox:mu=2.0)", "fedavg+local=fedprox)"))


ONE_MISTAKE = {
    "parameters of nothing": (["--local.mu", "1"], ["--local.mu 1", "Give --local NAME"]),
    "unknown method": (["--local", "fedprx"], ["--local fedprx", "Did you mean 'fedprox'?"]),
    "a server by another flag": (["--server", "orthofl"], ["--server orthofl", "no such flag"]),
    "unknown parameter": (["--local", "fedprox", "--local.nu", "1"], ["--local.nu 1", "'fedprox'", "mu"]),
    "unknown parameter of the method": (["--method", "orthofl", "--method.bet", "1"], ["--method.bet 1", "'beta'"]),
    "wrong type": (["--local", "fedprox", "--local.mu", "x"], ["--local.mu x", "wants float"]),
    "out of range": (["--local", "fedprox", "--local.mu", "-1"], ["--local.mu -1", "must be 0 or more"]),
    "a part twice": (
        ["--method", "asgd+local=fedprox", "--local", "fedsol"],
        ["asgd+local=fedprox", "--local fedsol", "local is there twice"],
    ),
    "unknown part": (["--method", "asgd+lokal=fedprox"], ["lokal", "'local'"]),
    "unknown flag": (["--lokal", "fedprox"], ["--lokal fedprox", "no such flag", "'local'"]),
    "nothing to distill with": (["--distill", "fedprox"], ["--distill fedprox", "fedecho"]),
    "a curve without control points": (["--manifold", "bezier"], ["--manifold bezier", "add --local asynccurve"]),
    "unknown manifold": (["--manifold", "circle"], ["--manifold circle", "no such manifold", "bezier"]),
    "a missing file": (["--manifold", "no.py:mine"], ["--manifold", "no.py:mine", "there is no file"]),
    "what nobody sends": (["--method", "orthofl", "--local", "fedogd"], ["--local fedogd", "use --method fedogd"]),
    "what nobody reads": (
        ["--method", "asgd", "--reply", "orthofl", "--reply.placement", "client"],
        ["--reply orthofl", "leave out --reply"],
    ),
}


@pytest.mark.parametrize("what", ONE_MISTAKE)
def test_one_mistake_in_a_cross(cli, here, what):
    args, words = ONE_MISTAKE[what]
    said = cli("run", "--out", "new", *args)
    assert said.code == 2
    assert "Traceback" not in said.err
    assert len(said.complaints) == 1
    for word in words:
        assert word in said.err
    assert said.out == ""
    assert list(here.iterdir()) == []


def test_a_cross_that_cannot_be_spoils_a_comparison_before_it_begins(cli, here):
    said = cli("compare", "--method", "fedavg", "--method", "orthofl+local=fedogd", "--out", "c")
    assert said.code == 2
    assert len(said.complaints) == 1
    assert said.complaints[0].startswith("--local fedogd: ")
    assert list(here.iterdir()) == []


def test_help_tells_of_every_part(cli):
    text = " ".join(cli("run", "--help").out.split())
    for flag in ("--method", "--local", "--correct", "--aggregate", "--step", "--reply", "--distill", "--manifold"):
        assert f"{flag} NAME" in text
