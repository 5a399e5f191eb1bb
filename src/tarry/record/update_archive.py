"""Files of updates, and the archive of all updates of a federation.

FOLDER/update-archive/N.safetensors    the update of ticket N

A replay needs the archive where clients train by code of their own, which is not repeated.
"""

from __future__ import annotations

from pathlib import Path

from ..core.errors import DamagedFile
from ..core.tickets import LocalResult
from . import checkpoint
from .storage import make_folder

__all__ = ["UpdateArchive", "read_update", "write_update"]


class UpdateArchive:
    """All accepted updates of a federation, in its folder."""

    def __init__(self, folder: Path):
        self._folder = folder / "update-archive"

    @property
    def exist(self) -> bool:
        """Return whether the federation has an archive."""
        return self._folder.is_dir()

    def begin(self) -> None:
        """Make the folder, which says that there is an archive."""
        make_folder(self._folder)

    def save(self, number: int, result: LocalResult) -> None:
        """Write an update; it is on disk when this returns."""
        write_update(self._file(number), result)

    def load(self, number: int) -> LocalResult:
        """Return an update; raise DamagedFile if it is missing or damaged."""
        return read_update(self._file(number), "it is missing; the federation cannot be replayed")

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:08d}.safetensors"


def write_update(path: Path, result: LocalResult) -> None:
    """Write an update to a file; it is on disk when this returns."""
    tree = {"delta": result.delta, "n_examples": result.n_examples, "n_steps": result.n_steps, "loss": result.loss}
    checkpoint.write(path, {**tree, "extras": dict(result.extras)})


def read_update(path: Path, if_missing: str) -> LocalResult:
    """Return the update in a file; raise DamagedFile if it is missing or damaged."""
    if not path.is_file():
        raise DamagedFile(f"{path}: {if_missing}")
    u = checkpoint.load(path)
    with checkpoint.fitting(path):
        return LocalResult(u["delta"], u["n_examples"], u["n_steps"], u["loss"], True, u["extras"])
