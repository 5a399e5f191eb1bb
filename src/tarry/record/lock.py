"""FolderLock: one run at a time in a folder, among processes and among the threads of this one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

from ..core.errors import BadInput, StorageError
from ..core.storage import storage_errors

__all__ = ["FolderBusy", "FolderLock"]

#: the folders and the logs that a run or a federation writes to
_WRITTEN = ("checkpoints", "proofs", "cache", "updates", "events.jsonl", "journal.jsonl", "arrivals.csv")
_guard = threading.Lock()
_held: set[tuple[int, int]] = set()  # device and inode of the lock files that this process holds


class FolderBusy(BadInput):
    """Another process or thread holds a folder."""


class FolderLock:
    """A lock on a folder, from its creation to `close` or the end of the process.

    A lock of lockf belongs to a process: forked workers do not share it, and closing any other descriptor of the file
    would release it. Therefore the files that are locked are remembered in the process.
    """

    def __init__(self, folder: Path, busy: str):
        """Raise FolderBusy with the text `busy` if another process or thread holds the folder."""
        check_links(folder)
        path = folder / ".lock"
        with _guard:
            self._fd = -1
            with storage_errors(path):
                if path.exists() and _inode(os.stat(path)) in _held:
                    raise FolderBusy(busy)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._fd, self._key = fd, _inode(os.fstat(fd))
            except (BlockingIOError, PermissionError):
                os.close(fd)
                raise FolderBusy(busy) from None
            except OSError:
                os.close(fd)
                with storage_errors(path, "locked"):
                    raise
            _held.add(self._key)

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        with _guard:
            if self._fd >= 0:
                with contextlib.suppress(OSError):  # it is closed in any case, and nothing was written to it
                    os.close(self._fd)
                self._fd = -1
                _held.discard(self._key)


def check_links(folder: Path) -> None:
    """Raise StorageError if a symbolic link in place of what a run writes leads out of its folder."""
    with storage_errors(folder, "read"):
        for path in (folder / name for name in _WRITTEN):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
                raise StorageError(f"{path}: it is a symbolic link that leads out of {folder}; put a copy in its place")


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
