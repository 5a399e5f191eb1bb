"""The page says what the results hold, no more, and what has not been run."""

from __future__ import annotations

import json
import xml.dom.minidom
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from tarry.reproduce import catalog
from tarry.reproduce.command import main
from tarry.reproduce.experiment import Experiment
from tarry.reproduce.page import write_page

Table = Callable[..., Experiment]
Do = Callable[..., list[str]]


def numbers(key: str) -> list[float]:
    raw: dict[str, Any] = json.loads(catalog.results("toy/table1").path.read_text())
    return [seed["numbers"]["accuracy"] for seed in raw["cells"][key]["full"]["seeds"].values()]


@pytest.fixture
def page(table: Table, do: Do, tmp_path: Path) -> Callable[..., str]:
    def make(**flags: object) -> str:
        do(table(), **flags)
        (tmp_path / "docs").mkdir(exist_ok=True)
        return write_page().read_text()

    return make


def test_numbers_are_those_of_the_results_beside_the_papers(page: Callable[..., str]) -> None:
    text = page()
    for row, key in (("fedavg", "fedavg/a"), ("OrthoFL", "orthofl/a")):
        ours = f"{fmean(numbers(key)):.1f} ± {stdev(numbers(key)):.1f}"
        assert any(line.startswith(f"| {row} |") and ours in line for line in text.splitlines())
    far = fmean(numbers("orthofl/a")) - 98.2
    assert f"<br>paper 98.2 ± 0.3, {'+' if far >= 0 else '−'}{abs(far):.1f}" in text
    assert "<br>paper 0.18×" in text
    assert "95% of the lowest final accuracy" in text
    assert "one-sided signed-rank test" in text
    assert "| OrthoFL above fedavg | 4 |" in text
    assert "OrthoFL is best: **" in text
    assert "Nothing is as in a paper" in text


def test_what_is_not_run_is_a_dash_and_said(page: Callable[..., str], folder: Path) -> None:
    (folder / "toy" / "table2.toml").write_text(
        (folder / "toy" / "table1.toml").read_text().replace("Table 1", "Table 2")
    )
    text = page(only="a", rows="fedavg", seeds="1")
    assert "| [toy](#toy) | 1 at full size, 0 reduced | 0 | 0 | 0 | 0 | 0 | 0 | 1 |" in text
    assert "| [toy/table1](#toy-table-1-toy) Toy | full, 1 of 4 cells, 1 seed | 0 | 0 | 0 | 0 | 0 | 0 | 1 |" in text
    assert "| [toy/table2](#toy-table-2-toy) Toy | not run | – | – | – | – | – | – | – |" in text
    assert "**Not run.**" in text
    assert "OrthoFL is best: **not run yet**." in text
    assert "| OrthoFL | –<br>paper 98.2 ± 0.3 |" in text


def test_commands_are_those_that_make_what_is_shown(
    page: Callable[..., str], table: Table, do: Do, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "```\ntarry reproduce toy/table1 --only a --rows orthofl --size full --seeds 4-4\n```" in page(
        only="a", rows="orthofl", seeds="4-4"
    )
    do(table(), size="reduced", seeds="1", command="tarry reproduce toy/table1 --precision tf32 --seeds 1")
    do(table(), size="reduced", seeds="2-2", only="b", rows="fedavg", command="tarry reproduce --precision=bf16")
    text = page(size="reduced", seeds="0,2", only="b")
    assert "--only a --size reduced --seeds 1 --precision tf32\n" in text
    commands = [line for line in text.splitlines() if line.startswith("tarry reproduce toy/table1 ")]
    assert sorted(c.partition("table1 ")[2] for c in commands) == [
        "--only a --size reduced --seeds 1 --precision tf32",
        "--only b --rows fedavg --size full --seeds 2-2 --precision bf16",
        "--only b --rows orthofl --size full --seeds 2-2",
        "--only b --size full --seeds 1 --precision tf32",
    ]
    for command in commands:  # each is understood, and nothing is left to run for it
        assert main([*command.split()[2:], "--device", "cpu"]) == 0
        assert " to do on " not in capsys.readouterr().out


def test_the_counts_of_claims_and_where_results_lie_are_explained(page: Callable[..., str], tmp_path: Path) -> None:
    text = page(only="a", seeds="1")
    assert " (1 so far) | 0 | 0 |" in text or "| 0 | 1 (1 so far) | 0 |" in text
    assert "5 (1 so far): for 1 of these 5, some of what it is about has not been run yet." in text
    assert "made from `experiments/<paper>/results/*.json` by\n`tarry reproduce --page`;" in text
    other = tmp_path / "other"
    text = write_page(results=other).read_text()
    assert f"made from `{other}/<paper>/results/*.json` by\n`tarry reproduce --page --results {other}`;" in text
    text = write_page(results=other, quick=True).read_text()
    assert f"made from `{other}/<paper>/results/*-quick.json` by\n`tarry reproduce --page --quick --res" in text


def test_a_reduced_size_is_said(page: Callable[..., str]) -> None:
    text = page(size="reduced", seeds="1")
    assert "Run at a reduced size:\n\n- α = 0.1: 900 of 1,500 virtual seconds" in text
    assert "| α = 0.1 (reduced, 1 seed) | b (1 seed) |" in text


def test_what_is_smaller_in_some_rows_alone_is_said_of_them(table: Table, do: Do, tmp_path: Path) -> None:
    e = table(("[columns.a]", "[rows.orthofl.reduced]\nlr = 0.05\n[columns.a]"))
    do(e, size="reduced", seeds="1", only="a")
    (tmp_path / "docs").mkdir()
    assert "- α = 0.1: 900 of 1,500 virtual seconds; OrthoFL: lr 0.05 for 0.1\n" in write_page().read_text()


def test_a_run_that_diverges_is_in_the_table_and_said(
    table: Table, do: Do, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steep = table(("lr = 0.1\n", "lr = 1e20\n"), ("time = 1500\n", "rounds = 30\n"))
    do(steep, only="a", rows="orthofl", seeds="1")
    (tmp_path / "docs").mkdir()
    text = write_page().read_text()
    assert "| OrthoFL | –" not in text
    assert "Said by runs:\n\n- OrthoFL, α = 0.1, seed 0: " in text
    main(["toy/table1", "--show", "--only", "a"])
    assert "OrthoFL, α = 0.1, seed 0: " in capsys.readouterr().out


def test_quick_runs_are_not_on_the_page(page: Callable[..., str]) -> None:
    assert "not run" in page(quick=True)


@pytest.mark.parametrize("figure", ['"curves"', '"bars"', '{ kind = "sweep", along = "rows" }', '"sweep"'])
def test_pictures_are_svg_with_a_name_for_every_row(table: Table, do: Do, tmp_path: Path, figure: str) -> None:
    do(table(('figure = "curves"', f"figure = {figure}")), seeds="1")
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "old.svg").write_text("")
    write_page()
    (picture,) = (tmp_path / "docs" / "results").iterdir()  # and none of what is no longer shown
    svg = picture.read_text()
    xml.dom.minidom.parseString(svg)
    wanted = ("α = 0.1", "b") if "rows" in figure else ("fedavg", "OrthoFL")
    assert all(f">{name}</text>" in svg for name in wanted)
    assert "![Toy](results/toy-table1.svg)" in (tmp_path / "docs" / "results.md").read_text()


def test_the_list_says_what_is_needed_and_what_is_in(table: Table, do: Do, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert "toy/table1  Toy, Table 1: Toy" in out
    assert "8 runs on digits, about 0.5 GPU hours; no results yet" in out
    do(table(), only="a")
    main(["--list"])
    assert "GPU hours; results: 2 of 4 cells, 2 seeds\n" in capsys.readouterr().out
    do(table(), only="a", rows="fedavg", quick=True)
    assert main(["toy/table1", "--show"]) == 0
    assert "quick" not in capsys.readouterr().out
    main(["--list"])
    assert "2 of 4 cells, 2 seeds; quick ones: --show --quick\n" in capsys.readouterr().out
    do(table(), seeds="1")
    main(["--list"])
    assert "GPU hours; results: all cells, 1 to 2 seeds; quick" in capsys.readouterr().out
