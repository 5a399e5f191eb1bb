from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tarry.cli.app import main
from tarry.deploy.local.local_federation import LocalFederation


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "federation: starts real federations and takes minutes (-m federation)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that take minutes run when they are asked for by name."""
    if "federation" in config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("federation")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    """`tarry WORDS` in this process: its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tarry", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as e:
            main()
        out, err = capsys.readouterr()
        return int(e.value.code or 0), out + err

    return call


@pytest.fixture
def local(tmp_path) -> Iterator[LocalFederation]:
    """A federation on this machine; its processes end with the test."""
    made = LocalFederation(tmp_path / "out", lambda line: sys.stderr.write(line + "\n"))
    yield made
    LocalFederation(made.folder).down(within=10.0)  # also what others started in the folder
