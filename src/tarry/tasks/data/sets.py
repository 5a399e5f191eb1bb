"""Catalog of data sets: where each is looked for, how to get it, and what can replace it.

A module of this package describes its sets and adds them:

    add_set(DataSet(
        name="mnist",                                   # of the set and of its task
        what="handwritten digits, 28×28 gray, 10 classes: 60,000 / 10,000",
        forms=(FileFormat(("mnist.npz",), read_npz), FileFormat(("train-images-idx3-ubyte.gz", ...), read_idx)),
        folders=("MNIST/raw", "MNIST"),                 # sub-folders of TARRY_DATA that are also searched
        get="the four *-ubyte.gz files of yann.lecun.com/exdb/mnist",
        stand_in="--task digits, bundled",
        hub=HubSource("ylecun/mnist", read_hub),        # None if the hub has no copy
        sizes=((60_000, 10_000),),                      # training and test examples: each pair is a whole set
    ))

Formats are tried in order, each in TARRY_DATA itself, in its folder of the set's name and in `folders`. The first path
that exists is read. A reader gets that path (a file, a folder or an archive) and the beginning of its error messages.
It returns the contents (an ArrayDataset or a TextDataset) or raises BadInput. The hub is used only if nothing is found
in TARRY_DATA and the user asks for it: TARRY_HUB=1, or `hub=True` (--task.hub true).

Notices that are not errors, for example that a set is incomplete, are collected by a context manager:

    with collect_notices(limit) as notices:
        tasks.build("mnist")
    notices                                             # ["mnist.npz: 1,000 of 60,000 training examples"]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from os.path import exists  # Path's own raises in a folder that may not be read
from pathlib import Path
from typing import Any

from ...core.errors import BadInput, near
from ...core.storage import PACKED
from .arrays import ArrayDataset

__all__ = [
    "LOOSE_SUFFIXES",
    "DataSet",
    "FileFormat",
    "HubSource",
    "add_notice",
    "add_set",
    "catalog",
    "collect_notices",
    "data_folder",
    "fetch",
    "is_absent",
    "load",
    "loose_files",
    "missing_files_message",
    "where_data_is",
    "without_flags",
    "without_suffix",
]

LOOSE_SUFFIXES = (".npz", ".jsonl", ".parquet", *(kind + packed for kind in (".npz", ".jsonl") for packed in PACKED))
_MAX_NAMES = 12  # file names listed in a message

FormatReader = Callable[[Path, str], Any]  # (path, flag) → contents of the set; every error message begins with `flag`


def _spellings(at: str) -> tuple[str, ...]:
    """A .tar.gz may also be called .tgz, or lie there unpacked to a .tar; others may be packed or Parquet."""
    base = at.removesuffix(".tar.gz")
    if base != at:
        return at, f"{base}.tgz", f"{base}.tar"
    packed = tuple(at + ending for ending in PACKED) if at.endswith((".jsonl", ".json", ".npz")) else ()
    name = at.removesuffix(".jsonl").removesuffix(".npz")
    return (at, *packed, *([] if name == at else [f"{name}.parquet"]))


@dataclass(frozen=True)
class FileFormat:
    """One format of a data set on disk. Any of the paths `at` (file, folder or archive below TARRY_DATA) is enough.

    A path that ends in `/` is a folder that counts only if one of `marks` is in it; `./` is the searched folder itself.
    """

    at: tuple[str, ...]
    read: FormatReader
    marks: tuple[str, ...] = ()

    def find(self, folder: Path) -> Path | None:
        """Return the first of its paths that exists below `folder`, or None."""
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
        """The paths as text, for messages."""
        named = (at.removeprefix("./") for at in self.at)
        return " or ".join(f"{at}{self.marks[0]}" if at.endswith("/") or not at else at for at in named)


@dataclass(frozen=True)
class HubSource:
    """A data set at the Hugging Face hub: its id, and its reader (given the beginning of error messages)."""

    id: str
    read: Callable[[str], Any]


@dataclass(frozen=True)
class DataSet:
    """A data set of the catalog: its description, its formats, how to get it, and what can replace it."""

    name: str
    what: str
    forms: tuple[FileFormat, ...]
    get: str
    stand_in: str
    folders: tuple[str, ...] = ()
    hub: HubSource | None = None
    sizes: tuple[tuple[int, int], ...] = ()  # of a whole set: training and test examples; empty where that varies

    @property
    def places(self) -> tuple[str, ...]:
        """The sub-folders of TARRY_DATA that are also searched."""
        return tuple(dict.fromkeys((self.name, *self.folders)))

    def find(self, forms: Sequence[FileFormat] | None = None) -> tuple[Path, FileFormat] | None:
        """Return the path and format of the set (among all formats or those given), or None."""
        folder = data_folder()
        if folder is None:
            return None
        for form in self.forms if forms is None else forms:
            for sub in ("", *self.places):
                if (path := form.find(folder / sub)) is not None:
                    return path, form
        return None

    def size_notice(self, train: int, test: int, limit: int | None = None) -> str | None:
        """Return a notice if the set is incomplete, else None. `limit` is the number of training examples asked for."""
        if not self.sizes:
            return None

        def unlike(size: tuple[int, int]) -> tuple[int, int]:
            differences = (abs(size[0] - train), abs(size[1] - test))
            return sum(n > 0 for n in differences), sum(differences)

        whole = min(self.sizes, key=unlike)
        most = train + whole[0] if limit is None else limit
        parts = (("training", min(train, most), min(whole[0], most)), ("test", test, whole[1]))
        notices = (
            f"{n:,} {'of' if n < of else 'in place of'} {of:,} {kind} examples" for kind, n, of in parts if n != of
        )
        return " and ".join(notices) or None


_sets: dict[str, DataSet] = {}


def add_set(data_set: DataSet) -> DataSet:
    """Add a set to the catalog. Its name must be new."""
    assert data_set.name not in _sets, f"data set {data_set.name!r} is in the catalog twice"
    _sets[data_set.name] = data_set
    return data_set


def catalog() -> dict[str, DataSet]:
    """Return every set by name, sorted."""
    return dict(sorted(_sets.items()))


def data_folder() -> Path | None:
    """Return the folder that TARRY_DATA names, or None if it is unset."""
    text = os.environ.get("TARRY_DATA", "")
    return Path(text).expanduser() if text else None


def where_data_is() -> str:
    """Return a sentence on TARRY_DATA: that it is unset or not a folder, or what the folder holds."""
    folder = data_folder()
    if folder is None:
        return "TARRY_DATA is unset: set it to a folder of data sets."
    if not folder.is_dir():
        return f"TARRY_DATA={folder} is not a folder: set it to a folder of data sets."
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"TARRY_DATA={folder} may not be read: change its permissions."
    names = sorted(_describe_path(p) for p in folder.iterdir() if not p.name.startswith("."))
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
    return f"TARRY_DATA={folder} holds {shown or 'nothing'}."


def _describe_path(path: Path) -> str:
    return path.name + "/" * path.is_dir() + (" (may not be read)" if not os.access(path, os.R_OK) else "")


def loose_files() -> dict[str, Path]:
    """Return the files of TARRY_DATA that are tasks by their names, without sets of the catalog.

    Of several files of one name the first in LOOSE_SUFFIXES counts. Return an empty dictionary if TARRY_DATA is unset
    or not a folder.
    """
    folder, found = data_folder(), dict[str, Path]()
    for suffix in LOOSE_SUFFIXES:
        for path in () if folder is None else sorted(folder.glob(f"*{suffix}")):
            found.setdefault(path.name.removesuffix(suffix), path)
    return {name: path for name, path in sorted(found.items()) if name not in _sets}


def without_suffix(name: str) -> str:
    """Return the name of a task for the name of its file: gait for gait.jsonl.xz."""
    return next((name.removesuffix(s) for s in LOOSE_SUFFIXES if name.endswith(s)), name)


def fetch(name: str, *, hub: bool = False) -> Any:
    """Return the contents of a data set: from TARRY_DATA, else from the hub if asked for. Raise BadInput otherwise."""
    if name not in _sets:
        raise BadInput(f"--task {name}: there is no such data set.{near(name, _sets)}")
    data_set = _sets[name]
    if (found := data_set.find()) is not None:
        path, form = found
        where = os.path.relpath(path, data_folder())
        return _check_sizes(data_set, name if where == "." else where, form.read(path, f"--task {name}: {path}"))
    hub_requested = hub or _hub_enabled()
    if data_set.hub is None or not hub_requested:
        raise BadInput(f"--task {name}: {missing_files_message(data_set, hub_requested=hub_requested)}")
    try:
        return _check_sizes(
            data_set, data_set.hub.id, data_set.hub.read(f"--task {name}: {data_set.hub.id} of the Hugging Face hub")
        )
    except BadInput as e:
        raise BadInput(f"{e}. And {missing_files_message(data_set, hub_requested=True)}") from e


def _hub_enabled() -> bool:
    return os.environ.get("TARRY_HUB", "").lower() in ("1", "true", "yes", "on")


def is_absent(name: str, *, hub: bool = False) -> str | None:
    """Return the error for a set that is not in TARRY_DATA and not requested from the hub, else None."""
    data_set, hub_requested = _sets.get(name), hub or _hub_enabled()
    if data_set is None or data_set.find() is not None or (data_set.hub is not None and hub_requested):
        return None
    return missing_files_message(data_set, hub_requested=hub_requested)


def load(name: str, *, hub: bool = False) -> ArrayDataset:
    """Return a data set of images or series, checked."""
    arrays = fetch(name, hub=hub)
    if not isinstance(arrays, ArrayDataset):
        raise BadInput(f"--task {name}: is no set of images or series but of texts; tarry.tasks.data.fetch reads it")
    return arrays


_collected: ContextVar[tuple[list[str], int | None] | None] = ContextVar("collected", default=None)


@contextmanager
def collect_notices(limit: int | None = None) -> Iterator[list[str]]:
    """Collect notices on the sets read within the context, of which `limit` training examples are asked for."""
    notices: list[str] = []
    token = _collected.set((notices, limit))
    try:
        yield notices
    finally:
        _collected.reset(token)


def add_notice(sentence: str) -> None:
    """Add a notice to the list of the enclosing `collect_notices`, if there is one."""
    if (collected := _collected.get()) is not None:
        collected[0].append(sentence)


def _check_sizes(data_set: DataSet, where: str, found: Any) -> Any:
    """Return what was found. Add a notice if it is not the whole set."""
    if not data_set.sizes or (collected := _collected.get()) is None:
        return found
    train, test = (found.y_train, found.y_test) if isinstance(found, ArrayDataset) else (found.train, found.test)
    if (notice := data_set.size_notice(len(train), len(test), collected[1])) is not None:
        add_notice(f"{where}: {notice}")
    return found


_flags: ContextVar[bool] = ContextVar("flags", default=True)


@contextmanager
def without_flags() -> Iterator[None]:
    """Errors about missing files suggest no flags of `tarry run` here, because another command is running."""
    token = _flags.set(False)
    try:
        yield
    finally:
        _flags.reset(token)


def missing_files_message(data_set: DataSet, *, hub_requested: bool = False) -> str:
    """Return one message: which files are looked for and where, how to get them, what can replace them.

    `hub_requested` says that the user asked for the hub.
    """
    flags = _flags.get()
    forms = "; or ".join(form.words for form in data_set.forms)
    hub = ""
    if data_set.hub is None and hub_requested:
        hub = " The Hugging Face hub is not asked for it: no copy is known there."
    elif data_set.hub is not None and not hub_requested:
        how = "TARRY_HUB=1 or --task.hub true" if flags else "TARRY_HUB=1"
        hub = f" Or {how} fetches {data_set.hub.id} from the Hugging Face hub."
    stand_in = f" What stands in: {data_set.stand_in}." if flags else ""
    return (
        f"the data set is not there. {where_data_is()} Put there (or in its folder {' or '.join(data_set.places)}):"
        f" {forms}. Get it: {data_set.get}.{hub}{stand_in}"
    )
