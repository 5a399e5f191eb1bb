from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tarry
from tarry.core.errors import BadInput
from tarry.reproduce.experiment import Experiment

Table = Callable[..., Experiment]
SETTINGS = {"task": {"name": "digits", "limit": 60, "hidden": 4}, "clients": 3, "updates": 3, "delay": "lognormal"}


def tuned(path: Path, seed: int, methods: list[str]) -> tarry.Tuning:
    tuning = tarry.tune(methods, trials=2, seeds=[seed], **SETTINGS)  # type: ignore[arg-type]
    tuning.save(path)
    return tuning


def test_the_rows_of_a_column_get_the_tuned_settings_of_their_methods(table: Table, tmp_path: Path) -> None:
    found = tuned(tmp_path / "a.toml", 900, ["fedavg", "orthofl:beta=0.6"])
    e = table(("gpu_hours", f'tuned = {{ a = "{tmp_path / "a.toml"}" }}\ngpu_hours'))
    assert e.cell("fedavg", "a", "full").settings["lr"] == found.best["fedavg"]["lr"]
    orthofl = e.cell("orthofl", "a", "full").settings
    assert (orthofl["lr"], orthofl["method"]["beta"]) == (found.best["orthofl:beta=0.6"]["lr"], 0.6)
    assert orthofl["method"]["a"] == found.best["orthofl:beta=0.6"]["method.a"]
    assert e.cell("fedavg", "b", "full").settings["lr"] == 0.1
    assert "Tuned on validation data: lr of fedavg" in e.deviations[-1]
    assert e.problems("full") == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ('{ c = "a.toml" }', "tuned.c: wants a column"),
        ('{ a = "none.toml" }', "tuned.a: --tuned .*none.toml: there is no such file"),
        ('{ a = "SEED" }', "was tuned with the seed 1, which the table uses too"),
    ],
)
def test_wrong_files_are_problems_of_the_table(table: Table, tmp_path: Path, files: str, message: str) -> None:
    if "SEED" in files:
        tuned(tmp_path / "seed.toml", 1, ["fedavg"])
        files = files.replace("SEED", str(tmp_path / "seed.toml"))
    with pytest.raises(BadInput, match=message):
        table(("gpu_hours", f"tuned = {files}\ngpu_hours"))
