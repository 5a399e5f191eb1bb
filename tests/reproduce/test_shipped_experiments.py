"""Every experiment that is shipped can be run, and every result that is shipped is of it."""

from __future__ import annotations

import pytest

from tarry.reproduce import catalog, queue
from tarry.reproduce.options import SIZES

NAMES = catalog.names()
MOST_BYTES = 250_000


def test_there_are_all_tables_of_orthofl() -> None:
    wanted = {
        f"orthofl/{t}" for t in ("fig1", "table2", "fig3", "fig4", "fig5", "fig6", "table3", "table4", "fig9", "fig10")
    }
    assert wanted <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_spec_at_every_size(name: str) -> None:
    experiment = catalog.find(name)  # names of the paper's numbers, of claims and of cells are checked here
    assert [p for size in SIZES for p in experiment.problems(size)] == []


def stores_results(name: str) -> bool:
    return catalog.find(name).uses is None and catalog.results(name).path.is_file()


@pytest.mark.parametrize("name", [name for name in NAMES if stores_results(name)])
def test_results_are_of_the_settings_as_they_are_now_and_small(name: str) -> None:
    experiment = catalog.find(name)
    store = catalog.results(name)
    if experiment.study is not None:
        assert any(store.study(experiment, size) is not None for size in SIZES) or store.earlier_study() is not None
    else:
        wanted = {experiment.cell(r, c, size).fingerprint for r, c in experiment.grid() for size in SIZES}
        assert {mark for cell, mark, _ in store.cells() if cell.size in SIZES} <= wanted
    assert store.path.stat().st_size < MOST_BYTES


def test_the_shipped_queue_can_be_run() -> None:
    entries = queue.read_queue()
    problems = [
        p
        for e in entries
        if e.experiment.study is None
        for p in e.experiment.problems(
            e.size,
            [(r, c) for r, c in e.experiment.grid() if r in (e.rows or (r,)) and c in (e.columns or (c,))],
        )
    ]
    assert problems == []
    required = {"fedsol/table2-lda", "orthofl/table2", "fedecho/table2", "fedogd/table1"}
    assert required | {f"asyncmanifold/{t}" for t in ("fig1", "fig3", "quality")} <= {
        e.experiment.name for e in entries
    }
