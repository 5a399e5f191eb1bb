"""tests/ follows the folders of src/, and a helper of tests is defined once."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "tarry"
METHODS = sorted(p.stem for p in (SRC / "methods").iterdir() if p.stem not in ("__init__", "registry", "__pycache__"))


def packages(root: Path) -> set[str]:
    return {str(p.parent.relative_to(root)) for p in root.rglob("__init__.py")}


def test_every_package_has_a_folder_of_tests() -> None:
    assert packages(SRC) - packages(TESTS) == set()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_naive_implementation_and_a_test(method: str) -> None:
    folder = TESTS / "methods" / method
    assert (folder / "reference.py").is_file()
    assert [*folder.glob("test_*.py")] != []


def test_a_helper_is_defined_once() -> None:
    places = defaultdict(list)
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("test_"):
                places[ast.dump(node)].append(f"{path.relative_to(TESTS)}:{node.lineno}: {node.name}")
    assert [found for found in places.values() if len(found) > 1] == []


def test_a_type_name_has_one_meaning() -> None:
    """A class is defined once, and an alias of a type stands for the same type in every file."""
    meanings = defaultdict(set)
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                meanings[node.name.lstrip("_")].add(f"{path.relative_to(SRC)}:{node.lineno}")
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name[0].isupper() and not name.isupper():
                    meanings[name].add(ast.dump(node.value))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}
