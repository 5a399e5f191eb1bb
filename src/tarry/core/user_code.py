"""Where an exception comes from: code of the user (a method, a task, a callback), or tarry."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from os.path import realpath
from pathlib import Path

__all__ = ["user_location"]

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
