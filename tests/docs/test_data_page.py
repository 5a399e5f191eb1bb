"""docs/data.md says what the catalog says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tarry.tasks import tasks
from tarry.tasks.data import catalog

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def row(name: str) -> str:
    made = catalog()[name]
    forms = "; ".join(f"`{form.words.replace(' or ', '` or `')}`" for form in made.forms)
    hub = f"`{made.hub.id}`" if made.hub else ""
    return f"| `{name}` | {made.what} | {forms} | {made.get} | {hub} | {made.stand_in} |"


@pytest.mark.parametrize("name", catalog())
def test_the_page_has_the_row_of_every_set(name: str) -> None:
    assert name in tasks
    assert row(name) in PAGE.splitlines()


def test_the_page_has_no_other_sets() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert {line.split("`")[1] for line in rows} == set(catalog())
