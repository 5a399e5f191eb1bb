from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tarry.cli.app import main
from tests.helpers.commands import restored_handlers


class Printed(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        """The sentences of what went wrong."""
        return [line.partition("error: ")[2] for line in self.err.splitlines() if line.lower().startswith("error: ")]


Cli = Callable[..., Printed]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder to be in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def cli(here, monkeypatch, capsys) -> Cli:
    """`tarry ARGS` in this process: exit code, standard output and standard error."""
    monkeypatch.delenv("TARRY_DATA", raising=False)

    def call(*args: str) -> Printed:
        monkeypatch.setattr(sys, "argv", ["tarry", *(str(a) for a in args)])
        capsys.readouterr()
        with restored_handlers(), pytest.raises(SystemExit) as e:
            main()
        out, err = capsys.readouterr()
        code = e.value.code
        return Printed(0 if code is None else int(code), out, err)

    return call


#: a run of well under a second
QUICK = [
    "--task.limit", "200", "--task.hidden", "8", "--clients", "4", "--epochs", "1",
    "--delay", "constant", "--updates", "6",
]  # fmt: skip


@pytest.fixture
def quick() -> list[str]:
    return list(QUICK)
