"""Checks of run folders and of commands that hold whatever has happened to them."""

from __future__ import annotations

import json
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .commands import Child, Failure, command

__all__ = [
    "check_message",
    "check_same",
    "check_verified",
    "finish",
    "is_finished",
    "require",
    "result_of",
    "sha256_of",
]

_CODES = (0, 1, 2)  # success, a failed check, an error with a message
_OF_WALL_TIME = ("wall_s", "sha256", "bound_to")  # keys of result.json; the digests count wall_s or other files


def require(holds: object, text: str) -> None:
    """Raise Failure with the text unless something holds."""
    if not holds:
        raise Failure(text)


def finish(child: Child, *codes: int) -> str:
    """Wait for a command and return what it printed; it must end with one of the codes, and without a traceback."""
    child.wait()
    check_message(child, *(codes or (0,)))
    return child.text


def check_message(child: Child, *codes: int) -> None:
    """Require an exit code, no traceback, and a message where the command failed."""
    about = f"{child.title} ended with {child.code}:\n{child.text[-3000:]}"
    require("Traceback" not in child.text, f"a traceback; {about}")
    require(child.code in (codes or _CODES), f"wrong exit code; {about}")
    if child.code == 2:
        require(re.search(r"^error: \S", child.text, re.MULTILINE), f"no message; {about}")


def is_finished(folder: Path) -> bool:
    """Return whether a run in a folder has a result."""
    return (folder / "result.json").is_file()


def result_of(folder: Path) -> dict[str, Any]:
    """Return the result of a run without what depends on wall time."""
    found: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    return {key: value for key, value in found.items() if key not in _OF_WALL_TIME}


def sha256_of(folder: Path) -> str:
    """Return the digest of a run's final weights."""
    return str(result_of(folder)["weights_sha256"])


def check_same(folder: Path, reference: Path) -> None:
    """Require that two finished runs have the same weights, rows of events, visits and results."""
    ours, theirs = sha256_of(folder), sha256_of(reference)
    rows = ((f / "events.jsonl").read_text().splitlines() for f in (folder, reference))
    for number, (a, b) in enumerate(zip_longest(*rows), 1):
        require(a == b, f"{folder}/events.jsonl, row {number}:\n  {a}\nin place of\n  {b}\nweights {ours}, {theirs}")
    require(ours == theirs, f"{folder}: the weights are {ours} in place of {theirs}")
    for name in ("model.safetensors", "arrivals.csv"):
        same = (folder / name).read_bytes() == (reference / name).read_bytes()
        require(same, f"{folder}/{name} differs from {reference}/{name}")
    ours, theirs = result_of(folder), result_of(reference)
    differ = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
    require(not differ, f"{folder}/result.json differs from {reference}'s: {differ}")


def check_verified(folder: Path, *more: str) -> None:
    """Require that `tarry verify` finds nothing wrong with a finished folder."""
    text = finish(command("verify", folder, *more))
    require("finished and consistent" in " ".join(text.split()), f"tarry verify {folder}: {text}")
