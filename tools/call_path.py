"""Call path of a command: how often execution passes from one file of tarry to another.

    python tools/call_path.py run --method orthofl --task digits --updates 5
    python tools/call_path.py --show run --method orthofl --task digits --updates 1 --steps 1

Every call of a function of tarry is recorded, without imports. A change of file is a call whose file differs from that
of the call before. `--show` prints the files in order, with the functions that are called there. It measures how far a
reader must follow the code, and is no measure of speed.
"""

from __future__ import annotations

import contextlib
import io
import pkgutil
import sys
from collections.abc import Iterable
from importlib import import_module
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import tarry

ROOT = str(Path(tarry.__file__).parent) + "/"
#: modules that run on import, or need what may not be installed
SKIPPED = ("__main__", "deploy.node", "deploy.fork_server", "triton", "numba", "studies")
Call = tuple[str, str]  # file and function


def import_all() -> None:
    """Import tarry's modules, so that imports are not on the path."""
    for module in pkgutil.walk_packages(tarry.__path__, "tarry."):
        if not any(part in module.name for part in SKIPPED):
            with contextlib.suppress(ImportError):
                import_module(module.name)


def trace(arguments: list[str]) -> list[Call]:
    """Return the calls of a command, in order."""
    from tarry.cli.app import main

    calls: list[Call] = []

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and code.co_name != "<module>":
            calls.append((code.co_filename.removeprefix(ROOT), code.co_qualname))

    sys.argv = ["tarry", *arguments]
    sys.setprofile(record)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.setprofile(None)
    return calls


def changes(calls: Iterable[Call]) -> int:
    """Return how many calls are in another file than the call before."""
    return sum(one[0] != other[0] for one, other in pairwise(calls))


def main() -> None:
    show, arguments = "--show" in sys.argv[1:2], [a for a in sys.argv[1:] if a != "--show"]
    if not arguments:
        sys.exit(__doc__)
    import_all()
    calls = trace(arguments)
    if show:
        for file, there in groupby(calls, key=lambda call: call[0]):
            print(f"{file}: {', '.join(dict.fromkeys(function for _, function in there))}")
    files = {file for file, _ in calls}
    print(f"{len(files)} files, {len(set(calls))} functions, {changes(calls)} changes of file")


if __name__ == "__main__":
    main()
