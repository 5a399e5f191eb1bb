"""Files: a failed system call becomes a StorageError with the file, the reason and the remedy.

`open_regular` opens a file of a run, and `open_input` one that a setting names: its errors are BadInput and begin with
the flag. Both open regular files up to a limit of size. `read_input` also unpacks files whose names end in .gz or .xz.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

from .errors import BadInput, DamagedFile, StorageError, first_line

__all__ = [
    "PACKED",
    "files_in",
    "open_input",
    "open_regular",
    "packing",
    "packing_errors",
    "other_storage_errors",
    "parse_toml",
    "read_input",
    "read_toml",
    "storage_errors",
    "unpacked",
    "unreadable_input",
]

PACKED = (".gz", ".xz")  # endings of names of files that are unpacked while they are read

_INPUT_LIMIT = 64 << 30  # bytes of a file of data that a setting names
_TOML_LIMIT = 1 << 24  # bytes of a file of settings
_TOML_DEPTH = 32  # of tables and lists in each other; settings have four

_REMEDIES = {
    errno.ENOSPC: "free space on this disk",
    errno.EDQUOT: "free space in your quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or use a file system without one",
    errno.EACCES: "check the permissions of the file and its folder",
    errno.EPERM: "check the permissions of the file and its folder",
    errno.EROFS: "use a folder on a file system that can be written to",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close programs that hold many files open",
    errno.EIO: "check the disk",
    errno.ENOLCK: "use a file system that supports locks",
    errno.ENOENT: "check that the folder still exists",
    errno.ENOTDIR: "name a folder, not a file",
    errno.EISDIR: "remove the folder in place of the file",
    errno.EEXIST: "remove what is in the way",
    errno.ELOOP: "remove the symbolic link",
    errno.ENXIO: "remove the pipe in place of the file",
    errno.ENAMETOOLONG: "use a shorter name",
}
_INPUT_REMEDIES = {errno.ENOENT: "check the path", errno.EISDIR: "name a plain file", errno.ENOTDIR: "check the path"}


@contextmanager
def storage_errors(path: str | Path, doing: str = "written") -> Iterator[None]:
    """Raise StorageError in place of OSError: "PATH: it cannot be written (reason); remedy"."""
    try:
        yield
    except OSError as e:
        raise _storage_error(e, path, doing) from e


@contextmanager
def other_storage_errors() -> Iterator[None]:
    """Raise StorageError in place of any OSError that names a file, such as that of a question about it (stat)."""
    try:
        yield
    except OSError as e:
        if e.filename is None:
            raise
        raise _storage_error(e, os.fsdecode(e.filename), "used") from e


def _storage_error(e: OSError, path: str | Path, doing: str) -> StorageError:
    reason = os.strerror(e.errno) if e.errno else str(e) or type(e).__name__
    remedy = _REMEDIES.get(e.errno or 0, "check the disk and the folder")
    return StorageError(f"{path}: it cannot be {doing} ({reason}); {remedy}")


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    """Return what is in a folder, sorted by name; [] if there is no such folder. Path.glob hides errors of the disk."""
    with storage_errors(folder, "read"):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
    return [folder / name for name in sorted(names) if fnmatchcase(name, pattern)]


def open_regular(path: Path, limit: int | None = None) -> BufferedReader:
    """Open a regular file of at most `limit` bytes for reading. A pipe or a device raises DamagedFile at once."""
    with storage_errors(path, "read"):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedFile(f"{path}: it is not a regular file")
            if limit is not None and found.st_size > limit:
                raise DamagedFile(f"{path}: it has {found.st_size:,} bytes, and at most {limit:,} are read")
        except BaseException:
            os.close(fd)
            raise
        return os.fdopen(fd, "rb")


def open_input(path: str | Path, flag: str, limit: int = _INPUT_LIMIT) -> BufferedReader:
    """Open a regular file of at most `limit` bytes that a setting names; BadInput begins with `flag`."""
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return open_regular(path, limit)
    except OSError as e:
        raise unreadable_input(flag, e) from e
    except StorageError as e:
        reason = e.__cause__
        assert isinstance(reason, OSError)
        raise unreadable_input(flag, reason) from e
    except DamagedFile as e:
        raise BadInput(f"{flag}: {str(e).removeprefix(f'{path}: ')}; name a plain file") from e
    except ValueError as e:
        if isinstance(e, BadInput):
            raise
        raise BadInput(f"{flag}: cannot be read: {e}") from e  # a zero byte in the name


def read_input(path: str | Path, flag: str, limit: int = _INPUT_LIMIT) -> bytes:
    """Return the content, unpacked, of a file that a setting names; BadInput if it has more than `limit` bytes."""
    with open_input(path, flag, limit) as file, packing_errors(flag):
        content = unpacked(file, path).read(limit + 1)
    if len(content) > limit:
        raise BadInput(f"{flag}: unpacks to more than {limit:,} bytes, and no more are read; name a smaller file")
    return content


def unpacked(file: IO[bytes], path: str | Path) -> IO[bytes]:
    """Return the file, unpacked while it is read if its name ends in .gz or .xz."""
    if str(path).endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    return cast(IO[bytes], lzma.LZMAFile(file)) if str(path).endswith(".xz") else file


def packing(file: IO[bytes], path: str | Path) -> AbstractContextManager[IO[bytes]]:
    """Return the file, packed while it is written if its name ends in .gz or .xz; close the result, then the file."""
    if str(path).endswith(".gz"):
        return cast(AbstractContextManager[IO[bytes]], gzip.GzipFile(fileobj=file, mode="wb", mtime=0))
    if str(path).endswith(".xz"):
        return cast(AbstractContextManager[IO[bytes]], lzma.LZMAFile(file, "wb"))
    return nullcontext(file)


@contextmanager
def packing_errors(flag: str) -> Iterator[None]:
    """Raise BadInput in place of the errors of reading a file that is packed, torn or on a bad disk."""
    try:
        yield
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as e:
        raise BadInput(f"{flag}: is torn, or not packed as its name says ({first_line(e)}); name another file") from e
    except OSError as e:
        raise unreadable_input(flag, e) from e


def unreadable_input(flag: str, e: OSError) -> BadInput:
    """Return the error for a file that a setting names: "FLAG: cannot be read: reason; remedy"."""
    remedy = _INPUT_REMEDIES.get(e.errno or 0) or _REMEDIES.get(e.errno or 0, "name another file")
    return BadInput(f"{flag}: cannot be read: {e.strerror or e}; {remedy}")


def read_toml(path: str | Path, flag: str) -> dict[str, Any]:
    """Return the tables of a TOML file that a setting names."""
    if not Path(path).exists():
        raise BadInput(f"{flag}: there is no such file")
    content = read_input(path, flag, _TOML_LIMIT)
    try:
        return parse_toml(content.decode())
    except ValueError as e:
        raise BadInput(f"{flag}: not TOML: {first_line(e)}") from e


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; raise ValueError if it is none, or is nested too deeply to be used."""
    try:
        tables = tomllib.loads(text)
    except RecursionError as e:
        raise ValueError(first_line(e)) from e
    level: list[Any] = [tables]
    for _ in range(_TOML_DEPTH):
        level = [item for value in level for item in (value.values() if isinstance(value, dict) else value)
                 if isinstance(item, dict | list)]  # fmt: skip
    if level:
        raise ValueError(f"tables and lists are nested more than {_TOML_DEPTH} deep")
    return tables
