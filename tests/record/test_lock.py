from __future__ import annotations

import os
import threading

import pytest

from tarry.core.errors import BadInput, StorageError
from tarry.record.lock import FolderLock


def test_a_folder_is_held_once_in_a_process_until_it_is_closed(tmp_path):
    first = FolderLock(tmp_path, "busy")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"^busy$"):
            FolderLock(tmp_path, "busy")
    first.close()
    first.close()
    FolderLock(tmp_path, "busy").close()


def test_another_process_does_not_get_a_folder_that_is_held(tmp_path):
    def other() -> int:
        pid = os.fork()
        if pid == 0:
            import tarry.record.lock as module

            module._held.clear()  # as in a process that was started by itself
            try:
                FolderLock(tmp_path, "busy")
            except BadInput:
                os._exit(3)
            os._exit(0)
        return os.WEXITSTATUS(os.waitpid(pid, 0)[1])

    lock = FolderLock(tmp_path, "busy")
    assert other() == 3
    lock.close()
    assert other() == 0


def test_one_of_many_threads_gets_the_folder(tmp_path):
    got: list[FolderLock] = []
    refused: list[BadInput] = []
    barrier = threading.Barrier(8)

    def claim() -> None:
        barrier.wait()
        try:
            got.append(FolderLock(tmp_path, "busy"))
        except BadInput as e:
            refused.append(e)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (len(got), len(refused)) == (1, 7)
    got[0].close()


def test_a_folder_that_is_missing_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"\.lock: it cannot be written \(No such file or directory\)"):
        FolderLock(tmp_path / "none", "busy")
