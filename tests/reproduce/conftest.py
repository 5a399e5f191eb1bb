"""A made-up folder of experiments on the bundled digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tarry.reproduce.command import check_options
from tarry.reproduce.experiment import Experiment
from tarry.reproduce.options import ReproduceFlags, ReproduceOptions
from tarry.reproduce.parser import read
from tarry.reproduce.running import run_all

TABLE = """
title = "Toy"
where = "Toy, Table 1"
words = "On all columns OrthoFL is best."
deviations = ["Nothing is as in a paper: there is none."]
measures = ["accuracy", "time"]
baseline = "fedavg"
seeds = 2
test = "wilcoxon"
hero = "orthofl"
figure = "curves"
gpu_hours = { a = 0.5 }

[settings]
task = "digits"
epochs = 1
lr = 0.1
clients = 5
time = 1500
eval_every = 250
[settings.quick]
time = 600

[columns.a]
title = "α = 0.1"
at = 0.1
partition = { name = "dirichlet", alpha = 0.1 }
[columns.a.reduced]
time = 900
[columns.b]
partition = { name = "dirichlet", alpha = 10.0 }

[rows.fedavg]
method = "fedavg"
[rows.orthofl]
title = "OrthoFL"
method = { name = "orthofl", beta = 0.6 }
[rows.orthofl.quick]
method = { beta = 0.5 }

[cells.orthofl.b]
lr = 0.2

[paper.accuracy.orthofl]
a = 98.2
[paper.sd.accuracy.orthofl]
a = 0.3
[paper.time.orthofl]
a = 0.18

[[claims]]
say = "OrthoFL is best"
check = "best"
row = "orthofl"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """experiments/ with toy/table1.toml in it; runs and results go beside."""
    root = tmp_path / "experiments"
    (root / "toy").mkdir(parents=True)
    (root / "toy" / "table1.toml").write_text(TABLE)
    monkeypatch.setenv("TARRY_EXPERIMENTS", str(root))
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def table(folder: Path) -> Callable[..., Experiment]:
    """The toy table with pieces of its text replaced."""

    def change(*pairs: tuple[str, str], name: str = "table1") -> Experiment:
        text = TABLE
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        path = folder / "toy" / f"{name}.toml"
        path.write_text(text)
        return read(path, f"toy/{name}")

    return change


@pytest.fixture
def do() -> Callable[..., list[str]]:
    """Run experiments on the CPU; what was told."""

    def run(*experiments: Experiment, fine: bool = True, command: str = "", **flags: object) -> list[str]:
        given = ReproduceFlags(**{"device": "cpu", **flags})  # type: ignore[arg-type]
        what: ReproduceOptions = check_options(experiments, given, command)
        said: list[str] = []
        failed = run_all(experiments, what, lambda report: said.append(report.text), said.append)
        assert (failed == []) is fine, failed
        return [*(s for s in said if s), *failed]

    return run
