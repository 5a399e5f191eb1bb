"""Pictures show what was run, from 0 where they are bars, with names that can be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tarry.core.errors import BadInput
from tarry.reproduce.experiment import Experiment
from tarry.reproduce.figures import draw
from tarry.reproduce.measures import StoredRun, measure_of
from tarry.reproduce.tables import Findings, TableGrid

Table = Callable[..., Experiment]
Numbers = Mapping[str, Mapping[str, float]]  # row, column
PANELS = ("[columns.b]\n", '[columns.b]\npanel = "both"\n[columns.c]\npanel = "both"\n[columns.d]\npanel = "none"\n')


def drawn_as(figure: str) -> tuple[str, str]:
    return 'figure = "curves"', f"figure = {figure}"


def found(experiment: Experiment, numbers: Numbers, times: tuple[float, ...] = ()) -> Findings:
    """As if each cell had been run with one seed, and its accuracy had been the same at these times."""
    name = (experiment.figure and experiment.figure.measure) or experiment.measures[0]
    values = {row: {column: {0: value} for column, value in cells.items()} for row, cells in numbers.items()}
    runs: dict[str, dict[str, dict[int, StoredRun]]] = {}
    for row, cells in numbers.items() if times else ():
        for column, value in cells.items():
            curve = {"time": times, "updates": times, "accuracy": [value] * len(times), "loss": [value] * len(times)}
            runs.setdefault(column, {})[row] = {0: StoredRun({}, curve, "", {})}
    return Findings(
        experiment,
        {row: side.title for row, side in experiment.rows.items()},
        {column: side.title for column, side in experiment.columns.items()},
        {name: TableGrid(name, measure_of(experiment, name), values)},
        runs,
        {},
    )


def texts(svg: Path) -> list[str]:
    return re.findall(r">([^<>\n]+)</text>", svg.read_text())


def test_a_panel_in_which_no_line_has_two_points_is_left_out(table: Table, tmp_path: Path) -> None:
    experiment = table(drawn_as('"sweep"'), PANELS, ("[columns.a]\n", '[columns.a]\npanel = "alone"\n'))
    here = {"fedavg": {"a": 70.0, "b": 71.0, "c": 72.0}, "orthofl": {"a": 73.0, "b": 74.0}}
    path = draw(found(experiment, here), tmp_path / "x.svg")
    assert path is not None
    assert "both" in texts(path)
    assert not {"alone", "none"} & set(texts(path))
    assert "OrthoFL" in texts(path)  # one point beside a line stays


def test_where_no_line_has_two_points_there_is_no_picture(table: Table, tmp_path: Path) -> None:
    for figure in ('"sweep"', '{ kind = "sweep", along = "rows" }', '"curves"'):
        there = found(table(drawn_as(figure)), {"fedavg": {"a": 70.0}}, (5.0,))
        assert draw(there, tmp_path / "x.svg") is None
    assert not (tmp_path / "x.svg").exists()


def test_bars_begin_at_0(table: Table, tmp_path: Path) -> None:
    path = draw(found(table(drawn_as('"bars"')), {"fedavg": {"a": 95.0}, "orthofl": {"a": 97.0}}), tmp_path / "x.svg")
    assert path is not None
    assert "0" in texts(path)


@pytest.mark.parametrize("kind", ["bars", "sweep"])
def test_a_long_name_of_an_upright_axis_is_broken_into_lines(table: Table, tmp_path: Path, kind: str) -> None:
    swing = ('measures = ["accuracy", "time"]', 'measures = ["accuracy", "time", "swing"]')
    experiment = table(swing, drawn_as(f'{{ kind = "{kind}", measure = "swing" }}'))
    path = draw(found(experiment, {"fedavg": {"a": 1.0, "b": 2.0}}), tmp_path / "x.svg")
    assert path is not None
    assert "mean change between" in texts(path)
    assert max(map(len, texts(path))) <= 24


def test_a_logarithmic_axis_has_the_places_in_plain_numbers(table: Table, tmp_path: Path) -> None:
    experiment = table(drawn_as('{ kind = "sweep", log = true }'), ("[columns.b]\n", "[columns.b]\nat = 500\n"))
    path = draw(found(experiment, {"fedavg": {"a": 70.0, "b": 71.0}}), tmp_path / "x.svg")
    assert path is not None
    assert {"0.1", "500"} <= set(texts(path))
    assert not [t for t in texts(path) if "$" in t]


@pytest.mark.parametrize("figure", ['kind = "curves"', 'kind = "sweep"', 'kind = "bars"'])
def test_a_figure_may_name_its_axis(table: Table, tmp_path: Path, figure: str) -> None:
    here = {"fedavg": {"a": 70.0, "b": 71.0}}
    path = draw(found(table(drawn_as(f'{{ {figure}, x = "epoch" }}')), here, (0.0, 6000.0)), tmp_path / "x.svg")
    assert path is not None
    assert "epoch" in texts(path)
    assert not [t for t in texts(path) if "virtual time" in t]
    assert ("6000" in texts(path)) is ("curves" in figure)  # a named time is not turned into minutes


def test_the_name_of_an_axis_is_text(table: Table) -> None:
    with pytest.raises(BadInput, match=r"figure\.x 3: wants text"):
        table(drawn_as('{ kind = "curves", x = 3 }'))


def test_a_figures_keys_change_no_fingerprint(table: Table) -> None:
    named = table(drawn_as('{ kind = "curves", x = "epoch" }')).cell("fedavg", "a", "full").fingerprint
    assert named == table().cell("fedavg", "a", "full").fingerprint


@pytest.mark.parametrize(("n", "rows"), [(3, 1), (4, 2), (5, 2), (8, 2), (9, 3)])
def test_rows_of_panels_are_filled_where_they_can_be(table: Table, tmp_path: Path, n: int, rows: int) -> None:
    more = "".join(f"[columns.c{i}]\n" for i in range(n - 2))
    experiment = table(("[rows.fedavg]\n", f"{more}[rows.fedavg]\n"))
    here = {"fedavg": dict.fromkeys(experiment.columns, 70.0)}
    path = draw(found(experiment, here, (0.0, 5.0)), tmp_path / "x.svg")
    assert path is not None
    assert texts(path).count("test accuracy (%)") == rows
