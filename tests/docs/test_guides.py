"""The tutorial and the guides run from top to bottom: their files, commands and Python, with the output that is shown.

```{code-block} python      a file that the page asks the reader to save under `:name:`
```console                  commands after `$ `, each with its output; `...` stands for any text
```python                   Python; the blocks of a page share their names
```output                   what the Python before it prints
```sh                       commands that are not run here
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.helpers.commands import call_command

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", DOCS / "features.md", DOCS / "tutorial.md", *sorted((DOCS / "guides").glob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>\{code-block\} \w+|\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r":name: (\S+)\n\n?(.*)", re.DOTALL)
PROGRESS = re.compile(r"^.*: \d+%\n", re.MULTILINE)
CHECKER = doctest.OutputChecker()


class Block(NamedTuple):
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(found["kind"], found["text"]) for found in FENCE.finditer(page.read_text())]


def commands(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split("$ ")[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def agrees(want: str, got: str) -> bool:
    """Whether the output is as shown; line breaks do not count, as they depend on the width of the terminal."""
    flat = [" ".join(text.split()) for text in (want, got)]
    return CHECKER.check_output(*flat, doctest.ELLIPSIS)


def run_command(command: str) -> str:
    words = shlex.split(command)
    if words[0] == "tarry":
        return PROGRESS.sub("", call_command(*words[1:])[1])
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def run_python(text: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "<page>", "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module, printed = ModuleType("page"), ""
    monkeypatch.setitem(sys.modules, "page", module)
    for kind, text in blocks(page):
        if kind.startswith("{"):
            name, content = NAMED.fullmatch(text).groups()  # type: ignore[union-attr]
            (tmp_path / name).write_text(content)
        elif kind == "console":
            for command, want in commands(text):
                got = run_command(command)
                assert agrees(want, got), f"{page.name}: {command}\n{got}"
        elif kind == "python":
            printed = run_python(text, vars(module))
        elif kind == "output":
            assert agrees(text, printed), f"{page.name}: this is printed:\n{printed}"
        else:
            assert kind in ("sh", "bibtex"), f"{page.name}: {kind} blocks are not run"


def test_every_guide_is_on_the_front_page() -> None:
    index = (DOCS / "index.md").read_text()
    listed = set(re.findall(r"^guides/(\S+)$", index, re.MULTILINE))
    assert listed == {page.stem for page in PAGES if page.parent.name == "guides"}
    for line in re.findall(r"^[\w/-]+$", index, re.MULTILINE):
        assert any((DOCS / f"{line}.{ending}").is_file() for ending in ("md", "ipynb")), line
