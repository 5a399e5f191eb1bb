"""The generated pages, docs/methods and docs/settings.md, are those of today's registry and settings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tarry.methods import methods

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", DOCS / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_page_a_method_and_no_other() -> None:
    there = {p.stem for p in (DOCS / "methods").glob("*.md")}
    assert there == {*methods, "README"}, "make docs writes them"


@pytest.mark.parametrize("name", list(methods))
def test_a_page_says_what_the_registry_says_today(name: str, maker: ModuleType) -> None:
    entry = methods[name]
    assert (DOCS / "methods" / f"{name}.md").read_text() == maker.page(entry, maker.cost(name)), "make docs"


def test_the_settings_page_is_that_of_today(maker: ModuleType) -> None:
    assert (DOCS / "settings.md").read_text() == maker.settings_page(), "make docs"


@pytest.mark.parametrize("name", list(methods))
def test_a_method_says_whose_it_is_and_when_to_use_it(name: str) -> None:
    entry = methods[name]
    assert entry.paper
    assert len(entry.use) > 20
