"""Exceptions of the user's own code are reported with file and line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tarry.core.layout import Layout
from tarry.core.user_code import user_location

METHOD = """
import tarry


def wrong():
    "A method with a mistake."

    def step(update, view):
        return view.weigts + update.delta

    return tarry.Method("wrong", step=tarry.stateless(step))
"""


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as e:
        return e
    raise AssertionError("nothing was raised")


def test_the_innermost_frame_of_the_user_is_named() -> None:
    where = user_location(caught(lambda: torch.zeros(2) @ torch.zeros(3)))
    assert where is not None
    assert where.startswith(f"{__file__}, line ")


def test_an_exception_that_tarry_raised_is_not_of_the_user() -> None:
    assert user_location(caught(lambda: Layout.of(torch.nn.ReLU()))) is None


@pytest.mark.parametrize("executor", [[], ["--workers", "2"]])
def test_the_command_line_names_file_and_line_of_a_mistake_in_a_method(tmp_path: Path, executor: list[str]) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    command = [sys.executable, "-m", "tarry", "run", "--method", "mine.py:wrong", "--updates", "2", *executor]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=os.environ)
    assert done.returncode == 1
    assert done.stderr.count("error:") == 1
    assert "mine.py, line 9, in step: AttributeError: 'ServerView' object has no attribute 'weigts'" in done.stderr
    assert "Traceback" not in done.stderr
