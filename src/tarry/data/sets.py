"""The catalogue of data sets: where each is looked for, how to get it, what stands in when it is missing.

A module of this room describes its sets and adds them:

    add(DataSet(
        name="mnist",                                   # of the set and of its task
        what="handwritten digits, 28×28 grey, 10 classes: 60,000 / 10,000",
        forms=(Form(("mnist.npz",), read_npz), Form(("train-images-idx3-ubyte.gz", ...), read_idx)),
        folders=("mnist", "MNIST/raw"),                 # sub-folders of TARRY_DATA that are also looked in
        get="the four *-ubyte.gz files of yann.lecun.com/exdb/mnist",
        stand_in="--task digits, bundled",
        hub=Hub("ylecun/mnist", read_hub),              # None where the hub has none
    ))

Forms are tried in order, each in TARRY_DATA itself and then in `folders`; the first whose path exists is read. A reader
gets that path (a file, a folder or an archive) and the words a complaint begins with; it returns what the set is made
of (Arrays for images and series, a record of their own for texts) or raises BadInput. The hub is asked only when
nothing lies in TARRY_DATA and somebody wants it: TARRY_HUB=1, or `hub=True` (--task.hub true).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import exists  # Path's own raises in a folder that may not be read
from pathlib import Path
from typing import Any

from ..core.errors import BadInput
from .arrays import Arrays

__all__ = [
    "DataSet",
    "Form",
    "Hub",
    "add",
    "catalogue",
    "data_folder",
    "fetch",
    "load",
    "loose_files",
    "missing",
    "where_data_is",
]

_SHOWN = 12  # names of a folder in a message

Reader = Callable[[Path, str], Any]  # (path, flag) → what the set is made of; `flag` begins every complaint


def _spellings(at: str) -> tuple[str, ...]:
    """A .tar.gz may also be called .tgz, or lie there unpacked to a .tar."""
    base = at.removesuffix(".tar.gz")
    return (at,) if base == at else (at, f"{base}.tgz", f"{base}.tar")


@dataclass(frozen=True)
class Form:
    """One way a data set lies on a disk: any of `at` (file, folder or archive, relative to TARRY_DATA) is enough.

    A path that ends in `/` is a folder that counts only when one of `marks` is in it; `./` is where it is looked for.
    """

    at: tuple[str, ...]
    read: Reader
    marks: tuple[str, ...] = ()

    def find(self, folder: Path) -> Path | None:
        """The first of its paths that exists below `folder`."""
        for at in (spelling for name in self.at for spelling in _spellings(name)):
            path = folder / at
            if at.endswith("/"):
                if any(exists(path / mark) for mark in self.marks):
                    return path
            elif exists(path):
                return path
        return None

    @property
    def words(self) -> str:
        """What a person may put there."""
        return " or ".join(self.marks[0] if at == "./" else at for at in self.at)


@dataclass(frozen=True)
class Hub:
    """A set at the Hugging Face hub: its id there, and what makes ours of it (given how complaints begin)."""

    id: str
    read: Callable[[str], Any]


@dataclass(frozen=True)
class DataSet:
    """A data set by name: what it is, the forms it is looked for in, how to get it, what stands in."""

    name: str
    what: str
    forms: tuple[Form, ...]
    get: str
    stand_in: str
    folders: tuple[str, ...] = ()
    hub: Hub | None = None

    def find(self, forms: Sequence[Form] | None = None) -> tuple[Path, Form] | None:
        """Where it lies and in which form (of all, or of those given), or None."""
        folder = data_folder()
        if folder is None:
            return None
        for form in self.forms if forms is None else forms:
            for sub in ("", *self.folders):
                if (path := form.find(folder / sub)) is not None:
                    return path, form
        return None


_sets: dict[str, DataSet] = {}


def add(made: DataSet) -> DataSet:
    """Put a set into the catalogue; its name must be new."""
    assert made.name not in _sets, f"data set {made.name!r} is in the catalogue twice"
    _sets[made.name] = made
    return made


def catalogue() -> dict[str, DataSet]:
    """Every set by name, sorted."""
    return dict(sorted(_sets.items()))


def data_folder() -> Path | None:
    """The folder TARRY_DATA names; None when it is unset."""
    text = os.environ.get("TARRY_DATA", "")
    return Path(text).expanduser() if text else None


def where_data_is() -> str:
    """A sentence on TARRY_DATA: unset, no folder, or what lies there."""
    folder = data_folder()
    if folder is None:
        return "TARRY_DATA is unset: set it to a folder of data sets."
    if not folder.is_dir():
        return f"TARRY_DATA={folder} is not a folder: set it to a folder of data sets."
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"TARRY_DATA={folder} may not be read: change its permissions."
    names = sorted(_shown(p) for p in folder.iterdir() if not p.name.startswith("."))
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"TARRY_DATA={folder} holds {shown or 'nothing'}."


def _shown(path: Path) -> str:
    return path.name + "/" * path.is_dir() + (" (may not be read)" if not os.access(path, os.R_OK) else "")


def loose_files() -> dict[str, Path]:
    """The .npz files of TARRY_DATA by name, sets of the catalogue left out; none when it is unset or no folder."""
    folder = data_folder()
    return {} if folder is None else {p.stem: p for p in sorted(folder.glob("*.npz")) if p.stem not in _sets}


def fetch(name: str, *, hub: bool = False) -> Any:
    """What the set of that name is made of: from TARRY_DATA, else from the hub if that is wanted, else BadInput."""
    made = _sets[name]
    found = made.find()
    if found is not None:
        path, form = found
        return form.read(path, f"--task {name}: {path}")
    if made.hub is not None and (hub or os.environ.get("TARRY_HUB", "").lower() in ("1", "true", "yes", "on")):
        return made.hub.read(f"--task {name}: {made.hub.id} of the Hugging Face hub")
    raise BadInput(f"--task {name}: {missing(made)}")


def load(name: str, *, hub: bool = False) -> Arrays:
    """The images or series of that name, checked."""
    arrays = fetch(name, hub=hub)
    assert isinstance(arrays, Arrays), f"{name} is no set of images or series"
    return arrays


def missing(made: DataSet) -> str:
    """One message: which files are looked for and where, how to get them, what stands in."""
    forms = "; or ".join(form.words for form in made.forms)
    also = f" (or in its folder {' or '.join(made.folders)})" if made.folders else ""
    hub = f" Or TARRY_HUB=1 or --task.hub true fetches {made.hub.id} from the Hugging Face hub." if made.hub else ""
    return (
        f"the data set is not there. {where_data_is()} Put there{also}: {forms}. Get it: {made.get}.{hub}"
        f" What stands in: {made.stand_in}."
    )
