"""Catalog of the experiments: in the package, or in the folder `experiments` of a checkout.

TARRY_EXPERIMENTS names another folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..core.errors import BadInput, near
from .experiment import Experiment
from .parser import read
from .store import Store

__all__ = ["find", "names", "page_folder", "results", "root"]

_PACKAGE = Path(__file__).resolve().parent.parent
_PACKED = _PACKAGE / "experiments"


def root() -> Path:
    """Return the folder that holds a folder for each paper."""
    if given := os.environ.get("TARRY_EXPERIMENTS"):
        folder = Path(given).expanduser().resolve()
        if not folder.is_dir():
            raise BadInput(f"TARRY_EXPERIMENTS {given}: there is no such folder")
        return folder
    for folder in (_PACKED, _PACKAGE.parent.parent / "experiments"):
        if folder.is_dir():
            return folder
    raise BadInput("no experiments are here; TARRY_EXPERIMENTS=FOLDER names the folder that holds them")


def names() -> list[str]:
    """Return paper/table of all experiments, tables in the order of their numbers."""
    found = [p.relative_to(root()).with_suffix("").as_posix() for p in root().glob("*/*.toml")]
    return sorted(found, key=_counts)


def _counts(name: str) -> tuple[str, str, int, str]:
    paper, _, table = name.partition("/")
    found = re.match(r"(\D*)(\d*)", table)
    assert found is not None
    return paper, found[1], int(found[2] or 0), table


def find(name: str) -> Experiment:
    """Return the experiment of a name such as orthofl/table2."""
    path = root() / f"{name}.toml"
    if name.count("/") != 1 or not path.is_file():
        known = names()
        papers = sorted({n.partition("/")[0] for n in known})
        hint = near(name, known) if "/" in name else ""
        more = "" if "Did you mean" in hint else f" `--list` shows all of {', '.join(papers)}."
        raise BadInput(f"{name}: there is no such experiment.{hint if 'Did you mean' in hint else ''}{more}")
    return read(path, name)


def results(name: str, *, quick: bool = False, folder: Path | None = None) -> Store:
    """Return the results of a table, those in `folder` if it is given.

    New results of experiments in the package are written to the folder `experiments` of the working directory; they
    begin as a copy of those in the package.
    """
    paper, _, table = name.partition("/")
    file = Path(paper, "results", f"{table}{'-quick' if quick else ''}.json")
    if folder is None and root() == _PACKED:
        return Store(Path("experiments") / file, name, base=root() / file)
    return Store((root() if folder is None else folder) / file, name)


def page_folder() -> Path:
    """Return the folder docs of the checkout of the experiments, or the working directory if there is none."""
    docs = root().parent / "docs"
    return docs if docs.is_dir() else Path.cwd()
