"""`tarry new`: a commented file with a method or a task that runs, to begin one's own with."""

from __future__ import annotations

import keyword
import os
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import BadInput
from ..core.storage import storage_errors
from . import console

__all__ = ["new"]

_KINDS = ("method", "task")


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Write a method or a task", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name it so, and write NAME.py", show_default=False)],
) -> None:
    """Write a commented file with a method or a task of your own, which runs as it is."""
    if kind not in _KINDS:
        raise BadInput(f"tarry new {kind}: there is no such kind; it is {' or '.join(_KINDS)}")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise BadInput(f"tarry new {kind} {name}: it must be a name of Python: letters, digits and _, no digit first")
    path = Path(f"{name}.py")
    text = (files(__package__) / "templates" / f"{kind}.txt").read_text(encoding="utf-8").replace("NAME", name)
    if os.path.lexists(path):
        raise BadInput(f"{path}: it is there already; choose another name, or remove it")
    with storage_errors(path), path.open("x", encoding="utf-8") as file:
        file.write(text)
    console.print_lines([f"{path} is written and runs:", f"    tarry run --{kind} {path}:{name} --time 3000"])
