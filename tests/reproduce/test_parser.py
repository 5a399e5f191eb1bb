"""TOML files become grids of settings, and all that is wrong with one is said at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tarry.config.spec import Choice
from tarry.core.errors import BadInput
from tarry.reproduce import catalog
from tarry.reproduce.experiment import Experiment, changes, fingerprint, merge_layers
from tarry.reproduce.parser import read

Table = Callable[..., Experiment]


def test_later_layers_win_and_a_table_without_a_name_changes_parameters() -> None:
    out = merge_layers(
        {"lr": 0.1, "method": "fedbuff:buffer=3", "task": {"name": "mnist", "model": "cnn"}},
        {"lr": 0.2, "method": {"eta": 0.5}, "task": {"name": "digits"}},
    )
    assert out["lr"] == 0.2
    assert out["method"] == {"name": "fedbuff", "buffer": "3", "eta": 0.5}
    assert out["task"] == {"name": "digits"}


def test_a_cell_is_settings_then_column_then_row_then_cell(table: Table) -> None:
    e = table(("[columns.b]\n", "[columns.b]\nlr = 0.3\nbatch = 7\n"), ("[rows.fedavg]\n", "[rows.fedavg]\nlr = 0.4\n"))
    assert e.cell("fedavg", "a", "full").settings["lr"] == 0.4  # the row over the settings
    assert e.cell("fedavg", "b", "full").settings["lr"] == 0.4  # the row over the column
    assert e.cell("orthofl", "b", "full").settings["lr"] == 0.2  # the cell over all
    assert e.cell("orthofl", "b", "full").settings["batch"] == 7
    assert e.cell("orthofl", "a", "full").settings["lr"] == 0.1


def test_smaller_sizes_change_what_they_say_after_everything_else(table: Table) -> None:
    quick = table().cell("orthofl", "a", "quick")
    assert quick.size == "quick"
    assert quick.settings["time"] == 600
    assert quick.settings["method"] == {"name": "orthofl", "beta": 0.5}
    assert "600 of 1,500 virtual seconds" in quick.changed
    assert "method.beta 0.5 for 0.6" in quick.changed


def test_a_size_that_changes_nothing_is_the_papers_own(table: Table) -> None:
    e = table()
    assert e.cell("fedavg", "a", "reduced").size == "reduced"
    assert e.cell("fedavg", "b", "reduced").size == "full"
    assert e.cell("fedavg", "b", "reduced").fingerprint == e.cell("fedavg", "b", "full").fingerprint


def test_a_cell_is_what_tarry_run_takes(table: Table) -> None:
    spec = table().cell("orthofl", "b", "full").spec(3)
    assert (spec.seed, spec.lr, spec.time, spec.clients) == (3, 0.2, 1500.0, 5)
    assert spec.method == Choice("orthofl", {"beta": 0.6})
    assert spec.partition == Choice("dirichlet", {"alpha": 10.0})


def test_none_takes_a_setting_away(table: Table) -> None:
    e = table(("[rows.fedavg]\n", '[rows.fedavg]\ntime = "none"\nrounds = 3\n'))
    spec = e.cell("fedavg", "a", "full").spec(0)
    assert (spec.time, spec.rounds) == (None, 3)


def test_fingerprints_tell_settings_apart_and_not_how_they_are_written() -> None:
    base = {"method": "fedavg", "lr": 1, "task": {"name": "digits", "limit": 5}}
    same = {"task": {"limit": 5.0, "name": "digits"}, "lr": 1.0, "method": {"name": "fedavg"}}
    assert fingerprint(base) == fingerprint(same)
    assert fingerprint(base) == fingerprint({**base, "device": "cuda", "workers": 4, "executor": "auto", "seed": 9})
    assert fingerprint(base) != fingerprint({**base, "lr": 2})
    assert fingerprint(base) != fingerprint({**base, "precision": "bf16"})


def test_changes_are_told_in_words() -> None:
    full = {"rounds": 500, "task": {"name": "mnist"}, "lr": 0.1}
    assert changes(full, {**full, "rounds": 125}) == "125 of 500 rounds"
    assert changes(full, {**full, "task": {"name": "digits", "limit": 10}}) == "task digits for mnist, task.limit 10"


def test_every_problem_is_said_at_once_with_file_and_key(folder: Path) -> None:
    path = folder / "toy" / "bad.toml"
    path.write_text(
        """
titel = "x"
where = "w"
words = "w"
measures = ["acuracy", "time"]
seeds = 0
hero = "b"
figure = "pie"
[settings]
lrr = 0.1
seed = 3
[columns.a]
time = 5
[rows.b]
method = "fedavg"
[cells.c.a]
lr = 1
[paper.accuracy.b]
z = 1
[[claims]]
say = "x"
check = "bigger"
[[claims]]
say = "y"
check = "above"
row = "b"
"""
    )
    with pytest.raises(BadInput) as e:
        read(path, "toy/bad")
    wanted = (
        "titel: there is no such key. Did you mean 'title'?",
        "title: wants text",
        "measures 'acuracy': it is not known. Did you mean 'accuracy'?",
        "measures 'time': it is relative to a row; name it as baseline",
        "seeds 0: wants a whole number",
        "figure.kind 'pie'",
        "settings.lrr: there is no such setting. Did you mean 'lr'?",
        "settings.seed: leave it out; the command says it (--seeds)",
        "cells.c: there is no 'c'",
        "paper.accuracy: there is no 'accuracy'",
        "paper.accuracy.b.z: there is no 'z'",
        "claims[0]: wants say and check",
        "claims[1]: above wants `than` (rows) or `value`",
    )
    for part in wanted:
        assert any(part in p and p.startswith(str(path)) for p in e.value.problems), part


def test_settings_that_no_run_takes_are_said_once_with_their_cells(table: Table) -> None:
    e = table(("lr = 0.1", "lr = -1"), ('method = "fedavg"', 'method = "fedavgg"'))
    problems = e.problems("full")
    assert any("--method fedavgg" in p and "fedavg/a, fedavg/b" in p for p in problems)
    assert sum("--lr -1" in p for p in problems) == 1
    assert table().problems("full") == table().problems("quick") == []


def test_not_toml_and_no_file_are_said(folder: Path) -> None:
    (folder / "toy" / "x.toml").write_text("a = [")
    with pytest.raises(BadInput, match="not TOML"):
        catalog.find("toy/x")
    with pytest.raises(BadInput, match="Did you mean 'toy/table1'"):
        catalog.find("toy/tabel1")


def test_a_table_that_uses_another_has_its_rows_and_cells(table: Table, folder: Path) -> None:
    table()
    path = folder / "toy" / "fig9.toml"
    path.write_text('uses = "table1"\ntitle = "t"\nwhere = "w"\nwords = "w"\nmeasures = ["tail"]\nfigure = "curves"\n')
    e = catalog.find("toy/fig9")
    assert e.runs_of == "toy/table1"
    assert list(e.rows) == ["fedavg", "orthofl"]
    assert e.cell("orthofl", "b", "full").settings["lr"] == 0.2
    path.write_text(path.read_text() + "[rows.x]\n")
    with pytest.raises(BadInput, match="rows: it comes from 'table1'"):
        catalog.find("toy/fig9")


def test_skipped_cells_are_not_in_the_grid(table: Table) -> None:
    e = table(("[cells.orthofl.b]\nlr = 0.2", "[cells.orthofl.b]\nskip = true"))
    assert list(e.grid()) == [("fedavg", "a"), ("orthofl", "a"), ("fedavg", "b")]


def test_tables_are_listed_in_the_order_people_count_them(folder: Path) -> None:
    for name in ("table10", "table2", "fig3"):
        (folder / "toy" / f"{name}.toml").write_text("")
    assert catalog.names() == ["toy/fig3", "toy/table1", "toy/table2", "toy/table10"]
