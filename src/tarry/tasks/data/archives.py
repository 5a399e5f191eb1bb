"""Read the files of a folder or an archive one at a time, with a limit on their size.

    for name, content in read_files(path, wanted, flag, most=1 << 20): ...

If `home` is given (a function from a file's name to the folder of its data set), only the files of one such folder are
read: the one nearest to the top. Copies further down are ignored. Two copies at the same depth are rejected. A .tar is
read as a stream, so a copy further down must not come first there. Files that macOS adds (`._name`, `__MACOSX/`) are
ignored.

An archive (.zip; .tar, plain or compressed by gzip, bzip2 or xz) is read from beginning to end and nothing is written
to disk, so no name in it can lead outside. Links and devices in an archive are ignored; links in a folder are followed.
Claimed sizes are checked before reading: a wanted file of more than `most` bytes, or an archive of more than 16 GiB in
all, is rejected.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from ...core.errors import BadInput
from .npz import UNREADABLE

__all__ = ["named_files", "parent_folder", "read_files", "zip_files"]

MOST_ARCHIVE = 16 << 30

File = tuple[str, bytes]  # name with / between folders, content
SetFolder = Callable[[str], str]  # a file's name → the folder of the set it belongs to


def read_files(
    path: Path, wanted: Callable[[str], bool], flag: str, *, most: int, home: SetFolder | None = None
) -> Iterator[File]:
    """Yield name and content of every wanted file below `path`, in stored order."""
    with _read_errors(flag):
        if path.is_dir():
            yield from _folder(path, wanted, flag, most, home)
        elif path.exists() and not path.is_file():
            raise BadInput(f"{flag}: it is not a regular file; name a plain file")
        elif zipfile.is_zipfile(path):
            with path.open("rb") as file:
                yield from zip_files(file, wanted, flag, most=most, home=home)
        else:
            yield from _tar(path, wanted, flag, most, home)


def parent_folder(name: str) -> str:
    """Return the parent folder of a file: the `home` of a data set that lies in one folder."""
    return name.rpartition("/")[0]


def _is_content(name: str) -> bool:
    return not name.rpartition("/")[2].startswith("._") and "__MACOSX" not in name.split("/")


def _nearest_to_top(names: list[str], home: SetFolder | None, flag: str) -> list[str]:
    """Return the names whose home is nearest to the top; all names if `home` is None."""
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
    return BadInput(f"{flag}: its files are in both {a} and {b}; delete one of these copies")


@contextmanager
def _read_errors(flag: str) -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise  # a ValueError, too
    except (*UNREADABLE, tarfile.TarError) as e:
        raise BadInput(f"{flag}: cannot be read ({type(e).__name__}: {e})") from e


def named_files(path: Path, names: tuple[str, ...], flag: str, *, most: int) -> dict[str, bytes]:
    """Return the contents of files by name (last part of the path). All of them must be in one folder."""
    found = dict[str, bytes]()
    for name, content in read_files(path, lambda n: n.rpartition("/")[2] in names, flag, most=most, home=parent_folder):
        found[name.rpartition("/")[2]] = content
        if len(found) == len(names) and _depth(parent_folder(name)) < 2:
            break  # stop here: the archive may be gigabytes long, and no copy can be nearer to the top
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
    """Yield all files below a folder, sorted, also in linked folders, except through a link to a parent folder."""
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
    """Yield the wanted files of an open .zip, as `read_files` does."""
    with _read_errors(flag), zipfile.ZipFile(file) as z:
        _check_size(sum(i.file_size for i in z.infolist()), MOST_ARCHIVE, "the archive", flag)
        members = {
            i.filename: i  # the last of two equal names wins, as in other tools
            for i in z.infolist()
            if wanted(i.filename) and _is_content(i.filename) and not i.is_dir()  # in this order: a name may be empty
        }
        for name in _nearest_to_top(list(members), home, flag):
            _check_size(members[name].file_size, most, name, flag)
            yield name, z.read(members[name])  # no more than it claims: zipfile stops there


class _Member(tarfile.TarInfo):
    """A tar header that must be there: tarfile accepts an archive that is truncated between two files."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as e:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # zeros: the end of an archive
            raise tarfile.ReadError(f"the archive is truncated or not an archive: {e}") from None


def _tar(path: Path, wanted: Callable[[str], bool], flag: str, most: int, home: SetFolder | None) -> Iterator[File]:
    total, first = 0, None
    with tarfile.open(path, "r|*", tarinfo=_Member) as tar:  # a stream: seeking back would decompress it again
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
            tar.members.clear()  # type: ignore[attr-defined]  # otherwise it keeps a record of every file


def _check_size(size: int, most: int, what: str, flag: str) -> None:
    if size > most:
        raise BadInput(f"{flag}: {what} claims {size:,} bytes; at most {most:,} are read")
