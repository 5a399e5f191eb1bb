from __future__ import annotations

import errno
import os

import pytest

from tarry.core.errors import DamagedFile, StorageError
from tarry.core.storage import storage_errors
from tarry.record.storage import make_folder, open_regular, read_bytes, read_json


@pytest.mark.parametrize(
    ("number", "reason", "remedy"),
    [
        (errno.ENOSPC, "No space left on device", "free space on this disk"),
        (errno.EFBIG, "File too large", "raise the limit on file sizes"),
        (errno.EACCES, "Permission denied", "check the permissions"),
        (errno.EROFS, "Read-only file system", "that can be written to"),
        (errno.EIO, "Input/output error", "check the disk"),
        (errno.EXDEV, "Invalid cross-device link", "check the disk and the folder"),
    ],
)
def test_an_error_names_the_file_the_reason_and_the_remedy(number, reason, remedy):
    with (
        pytest.raises(StorageError, match=rf"^runs/x: it cannot be written \({reason}\); .*{remedy}") as found,
        storage_errors("runs/x"),
    ):
        raise OSError(number, os.strerror(number))
    assert isinstance(found.value.__cause__, OSError)


def test_only_regular_files_up_to_the_limit_are_read(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a", 5) == b"12345"
    with pytest.raises(DamagedFile, match="it has 5 bytes, and at most 4 are read"):
        read_bytes(tmp_path / "a", 4)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/null"):
        with pytest.raises(DamagedFile, match="not a regular file"):
            open_regular(type(tmp_path)(path))
    with pytest.raises(StorageError, match="it cannot be read"):
        open_regular(tmp_path / "none")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 200_000, b"1" * 5000 + b"1"])
def test_a_document_that_is_no_json_is_damaged(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(DamagedFile, match=r"x.json cannot be read"):
        read_json(tmp_path / "x.json")


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"below: it cannot be made \(Not a directory\); name a folder, not a file"):
        make_folder(tmp_path / "file" / "below")
