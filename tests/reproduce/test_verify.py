"""Stored results of reproduced tables can be verified, and their runs repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tarry.reproduce import catalog
from tarry.reproduce.experiment import Experiment
from tarry.reproduce.verify import is_complete, result_files, verify_results
from tests.helpers.commands import call_command

Table = Callable[..., Experiment]
Do = Callable[..., list[str]]


@pytest.fixture
def stored(table: Table, do: Do) -> Path:
    do(table(), only="a", seeds="1")
    return catalog.results("toy/table1").path


def rewrite(path: Path, change: Callable[[dict[str, Any]], None], *, forged: bool = False) -> None:
    from tarry.reproduce.store import _digest

    data = json.loads(path.read_text())
    change(data)
    if forged:
        data["sha256"] = _digest(data)
    path.write_text(json.dumps(data))


def change_number(data: dict[str, Any]) -> None:
    data["cells"]["fedavg/a"]["full"]["seeds"]["0"]["numbers"]["accuracy"] += 1


def change_settings(data: dict[str, Any]) -> None:
    data["cells"]["fedavg/a"]["full"]["settings"]["lr"] = 0.5


def change_weights(data: dict[str, Any]) -> None:
    for sizes in data["cells"].values():
        sizes["full"]["seeds"]["0"]["weights"] = "0" * 64


def test_results_that_are_as_written_pass_and_their_runs_repeat(stored: Path) -> None:
    assert [check.ok for check in verify_results(stored)] == [True]
    *_, repeated = verify_results(stored, rerun="proofs")
    assert repeated.ok
    assert repeated.text.endswith("gives the same weights again")
    assert [check.ok for check in verify_results(stored, rerun="all")] == [True] * 3
    code, said = call_command("verify", "toy/table1", "--rerun", "proofs")
    assert code == 0
    assert "2 runs, with the experiment's settings" in said
    assert "not finished, but consistent" in said, "column b and the second seed are missing"


def test_complete_results_are_finished(stored: Path, table: Table, do: Do) -> None:
    assert not is_complete(stored)
    do(table())
    assert is_complete(stored)


@pytest.mark.parametrize("change", [change_number, change_settings, change_weights])
def test_a_changed_file_is_found(stored: Path, change: Callable[[dict[str, Any]], None]) -> None:
    rewrite(stored, change)
    (check,) = verify_results(stored, rerun="all")
    assert not check.ok
    assert "it is not what was written" in check.text
    code, _ = call_command("verify", str(stored))
    assert code == 1


def test_settings_that_are_not_those_of_the_fingerprint_are_found_though_the_digest_fits(stored: Path) -> None:
    rewrite(stored, change_settings, forged=True)
    (check,) = verify_results(stored, rerun="all")
    assert not check.ok
    assert "fedavg/a" in check.text


def test_weights_that_no_run_gives_are_found_though_the_digest_fits(stored: Path) -> None:
    rewrite(stored, change_weights, forged=True)
    first, *repeated = verify_results(stored, rerun="all")
    assert first.ok
    assert [check.ok for check in repeated] == [False, False]
    assert "gives other weights" in repeated[0].text


def test_results_of_another_machine_may_differ_by_rounding_only(stored: Path) -> None:
    def elsewhere(data: dict[str, Any]) -> None:
        change_weights(data)
        data["made"][0]["device"] = "another processor"

    rewrite(stored, elsewhere, forged=True)
    assert all(check.ok for check in verify_results(stored, rerun="all"))

    def worse(data: dict[str, Any]) -> None:
        data["cells"]["fedavg/a"]["full"]["seeds"]["0"]["numbers"]["accuracy"] -= 10

    rewrite(stored, worse, forged=True)
    assert [check.ok for check in verify_results(stored, rerun="all")] == [True, False, True]


def test_results_of_settings_that_the_experiment_no_longer_has_are_found(stored: Path, table: Table) -> None:
    table(("epochs = 1", "epochs = 2"))
    (check,) = verify_results(stored)
    assert not check.ok
    assert "`tarry reproduce toy/table1` runs it again" in check.text


def test_a_folder_of_experiments_is_verified_as_a_whole(stored: Path, folder: Path) -> None:
    assert result_files(folder) == result_files(folder / "toy") == result_files(stored.parent) == [stored]
    assert result_files(folder / "nothing") == []
