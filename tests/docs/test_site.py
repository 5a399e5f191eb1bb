"""The documentation site builds without a warning: every link, every public docstring, every page in a menu."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import tarry

OUTSIDE = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^"]*"[^>]*>')
DOCS = Path(__file__).parents[2] / "docs"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    notebooks_off = ["-D", "nb_execution_mode=off"]  # tests of the notebooks execute them
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", *notebooks_off]
    done = subprocess.run([*command, str(DOCS), str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "reference.html").read_text()
    assert [name for name in tarry.__all__ if f'id="tarry.{name}"' not in page] == []
    loaded = {tag for site in tmp_path.rglob("*.html") for tag in OUTSIDE.findall(site.read_text())}
    assert loaded == set()  # the site works without a network


def test_the_reference_names_every_public_name_once() -> None:
    named = re.findall(r"^\.\. auto\w+:: (\w+)", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(tarry.__all__)
