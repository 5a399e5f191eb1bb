"""Names that hold control characters, markup or marks of direction: no command passes them to a terminal or a page."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import tarry
from tarry.record.binding import seal
from tarry.report import markdown, score_over_time, staleness_bars, summarize
from tests.helpers.commands import call_command

EVIL = {
    "escape": "\x1b[31mred\x1b]0;title\x07",
    "markup": "[/red] [bold]b[/b] \\[link=x]",
    "a backslash at the end": "end\\",
    "a tag": "<script>alert(1)</script>&amp;<b>",
    "control characters": "a\0b\rc\x08d\x9b1me",
    "right to left": "abc\u202edcba\u2066x\u200f",
    "half a pair": "x\ud800y",
    "long": "very long " * 200,
    "lines": "one\ntwo\u2028three",
    "cells": "a|b `c` *d* $x_1$",
}
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
SMALL = ["--task.limit", "120", "--task.hidden", "4", "--clients", "3", "--epochs", "1", "--delay", "constant",
         "--updates", "6"]  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    tarry.run("fedasync", "digits:limit=120,hidden=4", clients=3, epochs=1, delay="constant", updates=6, out=folder,
              personalize=1, diagnose=True)  # fmt: skip
    return folder


def forged(template: Path, folder: Path, text: str) -> Path:
    """A finished run with a text in each place of result.json that holds one."""
    shutil.copytree(template, folder)
    raw = json.loads((folder / "result.json").read_text())
    del raw["sha256"]
    raw |= {"label": text, "method": text, "task": text, "executor_info": text, "warnings": [text], "version": text}
    series = next(iter(raw["diagnostics"]["series"].values()))
    raw["diagnostics"] |= {"series": {text: series}, "layers": [text], "validation": {text: [[0, 0.1, 1.0]]}}
    (folder / "result.json").write_bytes(seal(raw))
    return folder


def check_page(text: str) -> None:
    assert HIDDEN.search(text) is None
    assert not re.search(r"<(script|b|link)\b", text.partition("<body>")[2])
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)


@pytest.mark.parametrize("what", EVIL)
def test_texts_of_a_stored_result(template, tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    folder = forged(template, tmp_path / "run", EVIL[what])
    for command in (["report"], ["report", "--markdown"], ["verify"], ["resume"], ["watch", "--once"]):
        code, said = call_command(command[0], str(folder), *command[1:])
        assert code in (0, 1)
        assert HIDDEN.search(said) is None
    check_page((tmp_path / "report.html").read_text())
    result = tarry.read(folder)
    assert HIDDEN.search(repr(result)) is None
    summary = summarize([result])
    for svg in (score_over_time([result], summary), staleness_bars([result])):
        ElementTree.fromstring(svg)
    table = markdown(summary)
    assert HIDDEN.search(table) is None
    assert "<script" not in table.replace("\\<script", "")


@pytest.mark.parametrize("what", ["escape", "markup", "a tag", "right to left", "a backslash at the end"])
def test_names_of_folders(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    out = "out" + EVIL[what].replace("/", "\u2215")
    for command in (
        ["run", "--out", out, *SMALL],
        ["run", "--out", out, *SMALL],  # an error: the folder holds a run
        ["verify", out],
        ["watch", out, "--once"],
        ["resume", out],
        ["report", out],
    ):
        code, said = call_command(*command)
        assert code in (0, 2), said
        assert HIDDEN.search(said) is None
    check_page((tmp_path / "report.html").read_text())


@pytest.mark.parametrize("out", ["out[/b]", "out[/red]/[bold]"])
def test_markup_in_the_name_of_a_folder_is_shown_as_it_is(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    code, said = call_command("compare", "--method", "fedavg", "--seeds", "1", "--out", out, "--workers", "1", *SMALL)
    assert code == 0, said
    assert out in said
    code, said = call_command("verify", out)
    assert code == 0, said
    assert f"{out}: finished and consistent" in said


def test_the_name_of_a_method_of_a_file(tmp_path, monkeypatch):
    """A method is called as its file says, which may be anything."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import dataclasses, tarry\n"
        "def evil():\n"
        "    return dataclasses.replace(tarry.methods['fedavg'].make({}), name='\\x1b[2J[/red]<script>')\n"
    )
    words = ["--method", "mine.py:evil", *SMALL]
    code, said = call_command("run", *words, "--personalize", "1", "--out", "one")
    assert code == 0, said
    assert HIDDEN.search(said) is None
    code, said = call_command("compare", *words, "--seeds", "1", "--out", "two", "--workers", "1")
    assert code == 0, said
    assert HIDDEN.search(said) is None
    check_page((tmp_path / "two" / "report.html").read_text())


def test_a_file_name_that_is_not_utf8(cli, here):
    name = "av\udcff.csv"
    Path(name).write_text("client,start,end\n0,0,100\n1,0,100\n2,0,100\n")
    assert cli("run", *SMALL, "--availability", name).code == 0
    said = cli("run", *SMALL, "--availability", name, "--out", "run")
    assert said.code == 2
    assert re.search(r"--availability .*av.*csv: it is not UTF-8", said.err)
    assert not Path("run").exists()
    comparison = ["compare", "--method", "fedavg", "--seeds", "0", "--workers", "1", *SMALL, "--out", "out\udcff"]
    assert cli(*comparison).code == 0
    assert cli("verify", "out\udcff").code == 0
    said = cli("resume", "out\udcff")
    assert said.code == 2
    assert "this resumes it: " in said.err
