"""The commands and programs of docs/comparisons.md, with small sizes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import tarry
from tests.helpers.commands import call_command

PAGE = (Path(__file__).parents[2] / "docs" / "comparisons.md").read_text()
SMALL = ("--task.limit", "60", "--task.hidden", "4", "--clients", "3", "--epochs", "1")


def test_the_commands_of_the_page_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line)[1:] for line in PAGE.splitlines() if line.startswith("    tarry ")]
    assert [words[0] for words in commands] == ["compare", "tune", "compare"]
    for words in commands:
        small = () if "--tuned" in words else SMALL
        words = [{"1500": "100", "12": "2"}.get(word, word) for word in words]
        code, printed = call_command(*words, *small, *(["--time", "100"] if "grid" in words else []))
        assert code == 0, printed
    assert "Tuned on validation data" in printed
    assert (tmp_path / "study" / "trials.csv").is_file()


def test_the_programs_of_the_page_run(monkeypatch, capsys):
    def small(function):
        return lambda *given, **more: function(
            *given, **more, **({} if "tuned" in more else {"clients": 3, "epochs": 1})
        )

    monkeypatch.setattr(tarry, "compare", small(tarry.compare))
    monkeypatch.setattr(tarry, "tune", small(tarry.tune))
    names: dict[str, object] = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(program.replace("time=1500", "time=60"), names)
    assert isinstance(names["final"], tarry.Comparison)
    assert "Tuning(2 methods on digits, 3 trials each by random search, seeds 1000, 1001)" in capsys.readouterr().out


@pytest.mark.parametrize("text", re.findall(r"--space ([\w.]+=[^`]+)`", PAGE))
def test_the_spaces_of_the_page_are_spaces(text):
    name, _, values = text.partition("=")
    from tarry.runs.tuning.study import make_study

    study = make_study(["fedprox"], {}, 1, [9], "random", {name: values})
    assert str(study.methods[0].space[name]) == values
