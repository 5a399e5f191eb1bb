"""Errors of files: a failed system call becomes a StorageError that names the file, the reason and the remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StorageError

__all__ = ["storage_errors"]

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
    errno.ENAMETOOLONG: "use a shorter name",
}


@contextmanager
def storage_errors(path: str | Path, doing: str = "written") -> Iterator[None]:
    """Raise StorageError in place of OSError: "PATH: it cannot be written (reason); remedy"."""
    try:
        yield
    except OSError as e:
        reason = os.strerror(e.errno) if e.errno else str(e) or type(e).__name__
        remedy = _REMEDIES.get(e.errno or 0, "check the disk and the folder")
        raise StorageError(f"{path}: it cannot be {doing} ({reason}); {remedy}") from e
