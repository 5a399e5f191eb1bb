"""Archive of the updates of a federation, for a replay: its clients train by code of their own, which is not repeated.

FOLDER/update-archive/N.safetensors    the update of ticket N
"""

from __future__ import annotations

from pathlib import Path

from ..core.errors import DamagedFile
from ..core.tickets import LocalResult
from . import checkpoint
from .storage import make_folder

__all__ = ["UpdateArchive"]


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
        tree = {"delta": result.delta, "n_examples": result.n_examples, "n_steps": result.n_steps, "loss": result.loss}
        checkpoint.write(self._file(number), {**tree, "extras": dict(result.extras)})

    def load(self, number: int) -> LocalResult:
        """Return an update; raise DamagedFile if it is missing or damaged."""
        path = self._file(number)
        if not path.is_file():
            raise DamagedFile(f"{path} is missing; the federation cannot be replayed")
        u = checkpoint.load(path)
        with checkpoint.fitting(path):
            return LocalResult(u["delta"], u["n_examples"], u["n_steps"], u["loss"], True, u["extras"])

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:08d}.safetensors"
