"""Files of a folder or of an archive, one at a time, none larger than it may be.

    for name, content in files(path, wanted, flag, most=1 << 20): ...

Where `home` says which folder a file belongs to, only the files of one folder are given: the one nearest to the top. A
copy further down is passed over, two as near as each other are refused. A .tar is a stream, so there a copy further
down may not come first. What macOS leaves beside a file (`._name`, `__MACOSX/`) is never given.

An archive (.zip; .tar, plain or packed by gzip, bzip2 or xz) is read from beginning to end and nothing is ever written,
so no name in it can lead anywhere; links and devices in it are passed over. Links in a folder are followed. What a file
claims to hold is checked before it is read: a wanted file of more than `most` bytes, or an archive of more than 16 GiB
in all, is refused.
"""

from __future__ import annotations

import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from ...core.errors import BadInput
from .npz import UNREADABLE

__all__ = ["SlowReadNotice", "named_files", "parent_folder", "read_files", "zip_files"]

MOST_ARCHIVE = 16 << 30
_QUIET = 2.0  # seconds of reading before anything is said

File = tuple[str, bytes]  # name with / between folders, content
SetFolder = Callable[[str], str]  # a file's name → the folder of the set it belongs to


def read_files(
    path: Path, wanted: Callable[[str], bool], flag: str, *, most: int, home: SetFolder | None = None
) -> Iterator[File]:
    """Name and content of every file below `path` whose name is wanted, in the order they lie there."""
    with _read_errors(flag):
        if path.is_dir():
            yield from _folder(path, wanted, flag, most, home)
        elif zipfile.is_zipfile(path):
            with path.open("rb") as file:
                yield from zip_files(file, wanted, flag, most=most, home=home)
        else:
            yield from _tar(path, wanted, flag, most, home)


def parent_folder(name: str) -> str:
    """The home of a file whose set lies in one folder."""
    return name.rpartition("/")[0]


def _is_content(name: str) -> bool:
    return not name.rpartition("/")[2].startswith("._") and "__MACOSX" not in name.split("/")


def _nearest_to_top(names: list[str], home: SetFolder | None, flag: str) -> list[str]:
    """Those of the names whose home is nearest to the top; all of them where nobody asks for one."""
    if home is None or not names:
        return names
    homes = sorted({home(name) for name in names}, key=_depth)
    if len(homes) > 1 and _depth(homes[0]) == _depth(homes[1]):
        raise _found_twice(homes[0], homes[1], flag)
    return [name for name in names if home(name) == homes[0]]


def _depth(home: str) -> int:
    return len(home.split("/")) if home else 0


def _found_twice(one: str, other: str, flag: str) -> BadInput:
    a, b = sorted(f"{home}/" if home else "the top" for home in (one, other))
    return BadInput(f"{flag}: its files lie in {a} and in {b} as well; leave one of these copies")


@contextmanager
def _read_errors(flag: str) -> Iterator[None]:
    try:
        yield
    except (*UNREADABLE, tarfile.TarError) as e:
        raise BadInput(f"{flag}: cannot be read ({type(e).__name__}: {e})") from e


def named_files(path: Path, names: tuple[str, ...], flag: str, *, most: int) -> dict[str, bytes]:
    """The files of these names (last part), all of which must be there, in one folder."""
    found = dict[str, bytes]()
    for name, content in read_files(path, lambda n: n.rpartition("/")[2] in names, flag, most=most, home=parent_folder):
        found[name.rpartition("/")[2]] = content
        if len(found) == len(names) and _depth(parent_folder(name)) < 2:
            break  # an archive may go on for gigabytes, and nothing nearer to the top is to come
    if missing := [name for name in names if name not in found]:
        raise BadInput(f"{flag}: lacks {', '.join(missing)}")
    return found


def _folder(path: Path, wanted: Callable[[str], bool], flag: str, most: int, home: SetFolder | None) -> Iterator[File]:
    names = (file.relative_to(path).as_posix() for file in _files_below(path))
    there = [n for n in names if wanted(n) and _is_content(n) and (path / n).is_file()]
    for name in _nearest_to_top(there, home, flag):
        _check_size((path / name).stat().st_size, most, name, flag)
        yield name, (path / name).read_bytes()


def _files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All that lies below a folder, sorted, in linked folders too, but for a link that leads back up."""
    here = folder.resolve()
    if here in above:
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _files_below(path, (*above, here))
        else:
            yield path


def zip_files(
    file: IO[bytes], wanted: Callable[[str], bool], flag: str, *, most: int, home: SetFolder | None = None
) -> Iterator[File]:
    """As `files`, of an open .zip."""
    with _read_errors(flag), zipfile.ZipFile(file) as z:
        _check_size(sum(i.file_size for i in z.infolist()), MOST_ARCHIVE, "the archive", flag)
        members = {
            i.filename: i  # of two of one name the last, as everybody unpacks it
            for i in z.infolist()
            if wanted(i.filename) and _is_content(i.filename) and not i.is_dir()  # in this order: a name may be empty
        }
        for name in _nearest_to_top(list(members), home, flag):
            _check_size(members[name].file_size, most, name, flag)
            yield name, z.read(members[name])  # no more than it claims: zipfile stops there


class _Member(tarfile.TarInfo):
    """A header that must be there: the module takes an archive that breaks off between two files for a whole one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as e:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # zeros: the end of an archive
            raise tarfile.ReadError(f"it is torn, or no archive: {e}") from None


def _tar(path: Path, wanted: Callable[[str], bool], flag: str, most: int, home: SetFolder | None) -> Iterator[File]:
    total, first = 0, None
    with tarfile.open(path, "r|*", tarinfo=_Member) as tar:  # a stream: going back would unpack it again
        while (info := tar.next()) is not None:
            total += info.size
            _check_size(total, MOST_ARCHIVE, "the archive", flag)
            name = info.name.removeprefix("./")
            taken = info.isreg() and wanted(name) and _is_content(name)
            if taken and home is not None:
                here = home(name)
                first = here if first is None else first
                taken = here == first
                if not taken and _depth(here) <= _depth(first):
                    raise _found_twice(first, here, flag)
            if taken:
                _check_size(info.size, most, name, flag)
                member = tar.extractfile(info)
                assert member is not None
                content = member.read(info.size)
                if len(content) != info.size:
                    raise EOFError(f"{name} ends early")
                yield name, content
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep a record of every file passed


def _check_size(size: int, most: int, what: str, flag: str) -> None:
    if size > most:
        raise BadInput(f"{flag}: {what} claims {size:,} bytes; at most {most:,} are read")


class SlowReadNotice:
    """Says on standard error how far a long read has come: nothing for two seconds, then a line now and then."""

    def __init__(self, what: str):
        self._what, self._begun, self._next = what, time.monotonic(), _QUIET

    def __call__(self, done: int) -> None:
        passed = time.monotonic() - self._begun
        if passed > self._next:
            self._next = passed + 5
            sys.stderr.write(f"{self._what}: {done:,} read, {passed:.0f} s\n")
