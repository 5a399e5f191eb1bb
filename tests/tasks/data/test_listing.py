"""`tarry tasks` says of every set whether it is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tarry.cli.catalog import tasks as listing
from tarry.tasks.data import catalog


def test_the_list_says_of_every_set_where_it_is_or_that_it_is_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "mnist.npz", x=np.zeros(1))
    np.savez(folder / "gait.npz", x=np.zeros(1))
    (folder / "cifar-10-python.tar.gz").write_bytes(b"")
    listing()
    out = capsys.readouterr().out
    assert f"    data: {folder / 'mnist.npz'}\n" in out
    assert f"    data: {folder / 'cifar-10-python.tar.gz'}\n" in out
    for name in set(catalog()) - {"mnist", "cifar10"}:
        assert f"    data: not there; `tarry tasks {name}` says how to get it\n" in out
    assert out.count("    data: ") == len(catalog())
    assert "and in TARRY_DATA  --task gait\n" in out


def test_a_file_with_the_name_of_another_task_is_not_listed_as_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "digits.npz", x=np.zeros(1))
    listing()
    out = capsys.readouterr().out
    assert "and in TARRY_DATA" not in out
    assert f"{folder / 'digits.npz'} is not --task digits, which is another: --task npz --task.path reads it\n" in out


def test_a_missing_set_shown_alone_says_how_to_get_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listing("svhn")
    out = capsys.readouterr().out
    assert catalog()["svhn"].get in out
    assert catalog()["svhn"].stand_in in out
    np.savez(folder / "svhn.npz", x=np.zeros(1))
    listing("svhn")
    assert f"    data: {folder / 'svhn.npz'}\n" in capsys.readouterr().out
