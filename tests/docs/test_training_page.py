"""docs/training.md: its commands and its Python run, and its lists are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import tarry
from tarry.cli.app import COMMANDS
from tests.helpers.commands import call_command

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
LINES = [line.strip() for line in PAGE.splitlines() if line.startswith("    tarry ")]


@pytest.mark.parametrize("line", LINES)
def test_every_command_runs(line):
    code, shown = call_command(*shlex.split(line)[1:])
    assert code == 0, shown
    assert "accuracy" in shown or "--lr-schedule.warmup" in shown


def test_the_python_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "training.md", "exec"), {})


def test_every_schedule_is_in_the_table():
    rows = re.findall(r"^\| `([a-z]+)` \|", PAGE, re.M)
    assert sorted(rows) == list(tarry.schedules)
    assert "schedules" in COMMANDS


def test_the_methods_with_a_server_rate_are_those_of_the_code():
    section = PAGE.split("learning rate on the server:")[1].split("For the others")[0]
    plain = [entry for entry in tarry.methods.values() if not any(p.required for p in entry.params)]
    assert re.findall(r"`([a-z0-9-]+)`", section) == [
        entry.name for entry in plain if entry().step.with_schedule is not None
    ]
