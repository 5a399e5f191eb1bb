"""Backup of a federation's folder while its server works: a copy from which it resumes, and which can be replayed."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..core.errors import BadInput
from ..core.storage import files_in, storage_errors
from .journal import NAME
from .storage import make_folder, sync_folder

__all__ = ["back_up"]

_CHECKPOINTS = "checkpoints"
_ATTEMPTS = 5  # a copy is made again if checkpoints were replaced meanwhile
#: what belongs to the processes of this machine
_LEFT_OUT = ("flower", ".lock", "stop", "server.json", "run.json")


def back_up(folder: Path, copy: Path) -> int:
    """Copy the record of a federation to a new folder; return the number of files.

    The checkpoints are copied first, then the journal, then the rest. The server deletes updates and the tensors of
    checkpoints only when two newer checkpoints exist. So the copy is complete if the newest checkpoint of the beginning
    is still there at the end. One that was deleted meanwhile may lack tensors, and is left out of the copy.
    """
    if not (folder / NAME).is_file():
        raise BadInput(f"{folder}: no federation was recorded here (no {NAME})")
    if copy.exists() and (not copy.is_dir() or any(copy.iterdir())):
        raise BadInput(f"{copy}: it is not an empty folder; name another one")
    for _ in range(_ATTEMPTS):
        newest = files_in(folder / _CHECKPOINTS, "*.safetensors")[-1:]
        count = _copy(folder, copy)
        if all(path.is_file() for path in newest):
            return count - _remove_deleted(folder / _CHECKPOINTS, copy / _CHECKPOINTS)
        with storage_errors(copy, "removed"):
            shutil.rmtree(copy)
    raise BadInput(f"{folder}: checkpoints are written faster than they are copied; raise checkpoint-every")


def _copy(folder: Path, copy: Path) -> int:
    """Copy all files; a checkpoint that is written meanwhile is left out, since it is newer than the journal's copy."""
    count = sum(_copy_file(path, copy / path.relative_to(folder)) for path in _files(folder / _CHECKPOINTS))
    count += _copy_file(folder / NAME, copy / NAME)
    copied = {folder / _CHECKPOINTS, folder / NAME}
    rest = [path for path in _files(folder) if not copied & {path, *path.parents}]
    count += sum(_copy_file(path, copy / path.relative_to(folder)) for path in rest)
    sync_folder(copy)
    return count


def _remove_deleted(folder: Path, copy: Path) -> int:
    """Remove the copies of checkpoints that the server has deleted since; return their number."""
    deleted = [path for path in files_in(copy, "*.safetensors") if not (folder / path.name).is_file()]
    with storage_errors(copy, "removed"):
        for path in deleted:
            path.unlink()
    return len(deleted)


def _files(folder: Path) -> list[Path]:
    """Return the files of the record below a folder, without those of processes and incomplete ones."""
    found = list[Path]()
    for path in files_in(folder):
        if path.name in _LEFT_OUT or path.name.endswith(".part"):
            continue
        found += _files(path) if path.is_dir() else [path]
    return found


def _copy_file(path: Path, target: Path) -> bool:
    """Copy a file; return False if it is not there any more."""
    make_folder(target.parent)
    with storage_errors(target):
        try:
            shutil.copyfile(path, target)
        except FileNotFoundError:
            return False
    return True
