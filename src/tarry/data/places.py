"""Files of a folder or of an archive, one at a time, none larger than it may be.

    for name, content in files(path, wanted, flag, most=1 << 20): ...

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

from ..core.errors import BadInput
from .npz import UNREADABLE

__all__ = ["Told", "files", "only", "zip_files"]

MOST_ARCHIVE = 16 << 30
_QUIET = 2.0  # seconds of reading before anything is said

File = tuple[str, bytes]  # name with / between folders, content


def files(path: Path, wanted: Callable[[str], bool], flag: str, *, most: int) -> Iterator[File]:
    """Name and content of every file below `path` whose name is wanted, in the order they lie there."""
    with _reading(flag):
        if path.is_dir():
            yield from _folder(path, wanted, flag, most)
        elif zipfile.is_zipfile(path):
            with path.open("rb") as file:
                yield from zip_files(file, wanted, flag, most=most)
        else:
            yield from _tar(path, wanted, flag, most)


@contextmanager
def _reading(flag: str) -> Iterator[None]:
    try:
        yield
    except (*UNREADABLE, tarfile.TarError) as e:
        raise BadInput(f"{flag}: cannot be read ({type(e).__name__}: {e})") from e


def only(path: Path, names: tuple[str, ...], flag: str, *, most: int) -> dict[str, bytes]:
    """The files of these names (last part), all of which must be there."""
    found = dict[str, bytes]()
    for name, content in files(path, lambda n: n.rpartition("/")[2] in names, flag, most=most):
        found.setdefault(name.rpartition("/")[2], content)
        if len(found) == len(names):
            break  # an archive may go on for gigabytes
    if missing := [name for name in names if name not in found]:
        raise BadInput(f"{flag}: lacks {', '.join(missing)}")
    return found


def _folder(path: Path, wanted: Callable[[str], bool], flag: str, most: int) -> Iterator[File]:
    for file in _below(path):
        name = file.relative_to(path).as_posix()
        if wanted(name) and file.is_file():
            _check(file.stat().st_size, most, name, flag)
            yield name, file.read_bytes()


def _below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All that lies below a folder, sorted, in linked folders too, but for a link that leads back up."""
    here = folder.resolve()
    if here in above:
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _below(path, (*above, here))
        else:
            yield path


def zip_files(file: IO[bytes], wanted: Callable[[str], bool], flag: str, *, most: int) -> Iterator[File]:
    """As `files`, of an open .zip."""
    with _reading(flag), zipfile.ZipFile(file) as z:
        _check(sum(i.file_size for i in z.infolist()), MOST_ARCHIVE, "the archive", flag)
        for info in z.infolist():
            if wanted(info.filename) and not info.is_dir():  # in this order: a member may have an empty name
                _check(info.file_size, most, info.filename, flag)
                yield info.filename, z.read(info)  # no more than it claims: zipfile stops there


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


def _tar(path: Path, wanted: Callable[[str], bool], flag: str, most: int) -> Iterator[File]:
    total = 0
    with tarfile.open(path, "r|*", tarinfo=_Member) as tar:  # a stream: going back would unpack it again
        while (info := tar.next()) is not None:
            total += info.size
            _check(total, MOST_ARCHIVE, "the archive", flag)
            name = info.name.removeprefix("./")
            if info.isreg() and wanted(name):
                _check(info.size, most, name, flag)
                member = tar.extractfile(info)
                assert member is not None
                content = member.read(info.size)
                if len(content) != info.size:
                    raise EOFError(f"{name} ends early")
                yield name, content
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep a record of every file passed


def _check(size: int, most: int, what: str, flag: str) -> None:
    if size > most:
        raise BadInput(f"{flag}: {what} claims {size:,} bytes; at most {most:,} are read")


class Told:
    """Says on standard error how far a long read has come: nothing for two seconds, then a line now and then."""

    def __init__(self, what: str):
        self._what, self._begun, self._next = what, time.monotonic(), _QUIET

    def __call__(self, done: int) -> None:
        passed = time.monotonic() - self._begun
        if passed > self._next:
            self._next = passed + 5
            sys.stderr.write(f"{self._what}: {done:,} read, {passed:.0f} s\n")
