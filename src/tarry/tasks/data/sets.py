"""The catalogue of data sets: where each is looked for, how to get it, what stands in when it is missing.

A module of this room describes its sets and adds them:

    add(DataSet(
        name="mnist",                                   # of the set and of its task
        what="handwritten digits, 28×28 grey, 10 classes: 60,000 / 10,000",
        forms=(Form(("mnist.npz",), read_npz), Form(("train-images-idx3-ubyte.gz", ...), read_idx)),
        folders=("MNIST/raw", "MNIST"),                 # sub-folders of TARRY_DATA that are also looked in
        get="the four *-ubyte.gz files of yann.lecun.com/exdb/mnist",
        stand_in="--task digits, bundled",
        hub=Hub("ylecun/mnist", read_hub),              # None where the hub has none
        sizes=((60_000, 10_000),),                      # training and test examples: each pair is a whole set
    ))

Forms are tried in order, each in TARRY_DATA itself, in its folder of the set's name and in `folders`; the first whose
path exists is read. A reader gets that path (a file, a folder or an archive) and the words a complaint begins with; it
returns what the set is made of (Arrays for images and series, a record of their own for texts) or raises BadInput. The
hub is asked only when nothing lies in TARRY_DATA and somebody wants it: TARRY_HUB=1, or `hub=True` (--task.hub true).

What is read and is not wrong, but should be known (a set that is not whole), is heard by whoever listens:

    with remarked(limit) as said:
        tasks.build("mnist")
    said                                                # ["mnist.npz: 1,000 of 60,000 training examples"]
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
from .arrays import ArrayDataset

__all__ = [
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
    "missing",
    "where_data_is",
    "without_flags",
]

_MAX_NAMES = 12  # names of a folder in a message

FormatReader = Callable[[Path, str], Any]  # (path, flag) → what the set is made of; `flag` begins every complaint


def _spellings(at: str) -> tuple[str, ...]:
    """A .tar.gz may also be called .tgz, or lie there unpacked to a .tar."""
    base = at.removesuffix(".tar.gz")
    return (at,) if base == at else (at, f"{base}.tgz", f"{base}.tar")


@dataclass(frozen=True)
class FileFormat:
    """One way a data set lies on a disk: any of `at` (file, folder or archive, relative to TARRY_DATA) is enough.

    A path that ends in `/` is a folder that counts only when one of `marks` is in it; `./` is where it is looked for.
    """

    at: tuple[str, ...]
    read: FormatReader
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
        named = (at.removeprefix("./") for at in self.at)
        return " or ".join(f"{at}{self.marks[0]}" if at.endswith("/") or not at else at for at in named)


@dataclass(frozen=True)
class HubSource:
    """A set at the Hugging Face hub: its id there, and what makes ours of it (given how complaints begin)."""

    id: str
    read: Callable[[str], Any]


@dataclass(frozen=True)
class DataSet:
    """A data set by name: what it is, the forms it is looked for in, how to get it, what stands in."""

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
        """The sub-folders of TARRY_DATA that are also looked in."""
        return tuple(dict.fromkeys((self.name, *self.folders)))

    def find(self, forms: Sequence[FileFormat] | None = None) -> tuple[Path, FileFormat] | None:
        """Where it lies and in which form (of all, or of those given), or None."""
        folder = data_folder()
        if folder is None:
            return None
        for form in self.forms if forms is None else forms:
            for sub in ("", *self.places):
                if (path := form.find(folder / sub)) is not None:
                    return path, form
        return None

    def size_notice(self, train: int, test: int, limit: int | None = None) -> str | None:
        """How many examples of how many these are, where they are no whole set; `limit` training ones are asked for."""
        if not self.sizes:
            return None

        def unlike(size: tuple[int, int]) -> tuple[int, int]:
            apart = (abs(size[0] - train), abs(size[1] - test))
            return sum(n > 0 for n in apart), sum(apart)

        whole = min(self.sizes, key=unlike)
        most = train + whole[0] if limit is None else limit
        parts = (("training", min(train, most), min(whole[0], most)), ("test", test, whole[1]))
        told = (f"{n:,} {'of' if n < of else 'in place of'} {of:,} {kind} examples" for kind, n, of in parts if n != of)
        return " and ".join(told) or None


_sets: dict[str, DataSet] = {}


def add_set(made: DataSet) -> DataSet:
    """Put a set into the catalogue; its name must be new."""
    assert made.name not in _sets, f"data set {made.name!r} is in the catalogue twice"
    _sets[made.name] = made
    return made


def catalog() -> dict[str, DataSet]:
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
    names = sorted(_describe_path(p) for p in folder.iterdir() if not p.name.startswith("."))
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
    return f"TARRY_DATA={folder} holds {shown or 'nothing'}."


def _describe_path(path: Path) -> str:
    return path.name + "/" * path.is_dir() + (" (may not be read)" if not os.access(path, os.R_OK) else "")


def loose_files() -> dict[str, Path]:
    """The .npz and .jsonl files of TARRY_DATA by name, an .npz before a .jsonl and sets of the catalogue left out.

    None when it is unset or no folder.
    """
    folder = data_folder()
    found = [] if folder is None else [*folder.glob("*.jsonl"), *folder.glob("*.npz")]
    return {p.stem: p for p in sorted(found, key=lambda p: p.stem) if p.stem not in _sets}


def fetch(name: str, *, hub: bool = False) -> Any:
    """What the set of that name is made of: from TARRY_DATA, else from the hub if that is wanted, else BadInput."""
    if name not in _sets:
        raise BadInput(f"--task {name}: there is no such data set.{near(name, _sets)}")
    made = _sets[name]
    if (found := made.find()) is not None:
        path, form = found
        where = os.path.relpath(path, data_folder())
        return _check_sizes(made, name if where == "." else where, form.read(path, f"--task {name}: {path}"))
    asked = hub or _hub_enabled()
    if made.hub is None or not asked:
        raise BadInput(f"--task {name}: {missing(made, asked=asked)}")
    try:
        return _check_sizes(made, made.hub.id, made.hub.read(f"--task {name}: {made.hub.id} of the Hugging Face hub"))
    except BadInput as e:
        raise BadInput(f"{e}. And {missing(made, asked=True)}") from e


def _hub_enabled() -> bool:
    return os.environ.get("TARRY_HUB", "").lower() in ("1", "true", "yes", "on")


def is_absent(name: str, *, hub: bool = False) -> str | None:
    """What `missing` says of a set that is not here and not asked for at the hub; None of all others. Reads nothing."""
    made, asked = _sets.get(name), hub or _hub_enabled()
    if made is None or made.find() is not None or (made.hub is not None and asked):
        return None
    return missing(made, asked=asked)


def load(name: str, *, hub: bool = False) -> ArrayDataset:
    """The images or series of that name, checked."""
    arrays = fetch(name, hub=hub)
    if not isinstance(arrays, ArrayDataset):
        raise BadInput(f"--task {name}: is no set of images or series but of texts; tarry.tasks.data.fetch reads it")
    return arrays


_collected: ContextVar[tuple[list[str], int | None] | None] = ContextVar("heard", default=None)


@contextmanager
def collect_notices(limit: int | None = None) -> Iterator[list[str]]:
    """What is remarked on the sets that are read meanwhile, of which `limit` training examples are asked for."""
    said: list[str] = []
    token = _collected.set((said, limit))
    try:
        yield said
    finally:
        _collected.reset(token)


def add_notice(sentence: str) -> None:
    """Say something of a set that is not wrong, to whoever listens."""
    if (heard := _collected.get()) is not None:
        heard[0].append(sentence)


def _check_sizes(made: DataSet, where: str, found: Any) -> Any:
    """What was found, Arrays or a record of texts; that it is not the whole set is remarked."""
    if not made.sizes or (heard := _collected.get()) is None:
        return found
    train, test = (found.y_train, found.y_test) if isinstance(found, ArrayDataset) else (found.train, found.test)
    if (told := made.size_notice(len(train), len(test), heard[1])) is not None:
        add_notice(f"{where}: {told}")
    return found


_flags: ContextVar[bool] = ContextVar("flags", default=True)


@contextmanager
def without_flags() -> Iterator[None]:
    """Meanwhile `missing` advises no flags of `tarry run`: whoever reads it gave another command."""
    token = _flags.set(False)
    try:
        yield
    finally:
        _flags.reset(token)


def missing(made: DataSet, *, asked: bool = False) -> str:
    """One message: which files are looked for and where, how to get them, what stands in; `asked`: the hub was."""
    flags = _flags.get()
    forms = "; or ".join(form.words for form in made.forms)
    hub = ""
    if made.hub is None and asked:
        hub = " The Hugging Face hub is not asked for it: no copy is known there."
    elif made.hub is not None and not asked:
        how = "TARRY_HUB=1 or --task.hub true" if flags else "TARRY_HUB=1"
        hub = f" Or {how} fetches {made.hub.id} from the Hugging Face hub."
    stand_in = f" What stands in: {made.stand_in}." if flags else ""
    return (
        f"the data set is not there. {where_data_is()} Put there (or in its folder {' or '.join(made.places)}):"
        f" {forms}. Get it: {made.get}.{hub}{stand_in}"
    )
