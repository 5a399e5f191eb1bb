"""Code of the user (a method, a task, a callback): how a file is imported, and whether an exception comes from it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
import types
from importlib.machinery import SourceFileLoader
from os.path import realpath
from pathlib import Path

__all__ = ["import_file", "user_location"]

_TARRY = realpath(Path(__file__).parent.parent)
_LIBRARIES = tuple(realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def user_location(e: BaseException) -> str | None:
    """Return "FILE, line N, in FUNCTION" if the user's code raised the exception or called what did, else None.

    >>> from tarry.core.user_code import user_location
    >>> user_location(ValueError("never raised")) is None
    True
    """
    for frame in reversed(traceback.extract_tb(e.__traceback__)):
        path = realpath(frame.filename)
        if frame.filename.startswith("<") or any(_is_in(path, library) for library in _LIBRARIES):
            continue
        if _is_in(path, _TARRY) or path == realpath(sys.argv[0]):
            return None
        return f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return None


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


def import_file(path: Path) -> types.ModuleType:
    """Import a file. One in a package may import from its package: the folder of the package is put on sys.path."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts, folder = [folder.name, *parts], folder.parent
    if len(parts) > 1 and str(folder) not in sys.path:
        sys.path.append(str(folder))
    module_name = f"tarry_user_{path.stem}"
    loader = _SourceLoader(module_name, str(path))
    spec = importlib.util.spec_from_loader(module_name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        loader.exec_module(module)
    except ImportError as e:
        if len(parts) == 1 or "relative import" not in str(e):
            raise
        module = importlib.import_module(".".join(parts))
    return module


class _SourceLoader(SourceFileLoader):
    """Compiles a user's file each time. Cached bytecode of a file that changed twice in a second may be the old one."""

    def get_code(self, fullname: str) -> types.CodeType:  # noqa: ARG002
        return self.source_to_code(self.get_data(self.path), self.path)
