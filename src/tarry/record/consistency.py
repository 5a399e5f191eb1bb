"""Check that a run folder is what the run wrote: settings, log, checkpoints, result and weights belong together.

    for check in check_run(Path("runs/first")):
        print(check.ok, check.name, check.text)

A finished run is bound by its result (record.binding), an unfinished one by its newest checkpoint. Nothing is unpickled
or trained, and each file is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import BadInput, DamagedFile, StorageError
from ..core.storage import files_in
from . import checkpoint
from .binding import binding_of, file_digest
from .journal import NAME as JOURNAL
from .rows import Mark, check_prefix, end_of_rows
from .run_folder import RunFolder

__all__ = ["Check", "check_run"]

_PROBLEMS = (BadInput, DamagedFile, StorageError)


class Check(NamedTuple):
    """One check of a folder."""

    name: str
    ok: bool
    text: str


def check_run(path: Path) -> Iterator[Check]:
    """Yield the checks of the folder of a run or a federation."""
    folder, settings = RunFolder(path), ""
    try:
        folder.settings()
        settings = folder.meta().settings_sha256
        yield Check("settings", True, f"spec.toml is as the run began (digest {settings[:12]})")
    except _PROBLEMS as e:
        yield Check("settings", False, str(e))
    try:
        finished = folder.is_finished()
    except DamagedFile as e:
        yield Check("result", False, str(e))
        return
    yield from _check_finished(folder, settings) if finished else _check_unfinished(folder, settings)


def _check_finished(folder: RunFolder, settings: str) -> Iterator[Check]:
    try:
        bound, files = binding_of(folder.result)
    except _PROBLEMS as e:
        yield Check("result", False, str(e))
        return
    yield _check_bound(folder.result, same=not settings or bound == settings)._replace(name="result")
    for name, written in files.items():
        yield _check_file(folder.path / name, written)
    for check, _ in _check_checkpoints(folder, settings):
        yield check


def _check_file(path: Path, written: list[Any]) -> Check:
    if not path.is_file():
        return Check(path.name, False, f"{path} is missing")
    try:
        found = file_digest(path)
        if found == written:
            return Check(path.name, True, f"{path.name} is as written ({found[0]:,} bytes)")
        if path.suffix == ".jsonl":
            end_of_rows(path)  # names the row that is damaged
    except _PROBLEMS as e:
        return Check(path.name, False, str(e))
    return Check(path.name, False, f"{path}: it is not what was written")


def _check_unfinished(folder: RunFolder, settings: str) -> Iterator[Check]:
    log, mark = JOURNAL if (folder.path / JOURNAL).is_file() else "events.jsonl", Mark()
    for check, found in _check_checkpoints(folder, settings):
        mark = found or mark
        yield check
    for path in files_in(folder.proofs, "*.safetensors"):
        yield _check_proof(path, settings)
    try:
        if mark.nbytes:
            check_prefix(folder.path / log, mark)
        end = end_of_rows(folder.path / log, mark)
        yield Check(log, True, f"{log} is as written ({end.nbytes:,} bytes)")
    except _PROBLEMS as e:
        yield Check(log, False, str(e))


def _check_proof(path: Path, settings: str) -> Check:
    remedy = "restore it from a copy, or delete it"
    try:
        saved = checkpoint.load(path, remedy=remedy)
        with checkpoint.fitting(path, remedy):
            bound = saved["settings"]
    except _PROBLEMS as e:
        return Check(path.name, False, str(e))
    return _check_bound(path, same=not settings or bound == settings)


def _check_bound(path: Path, *, same: bool) -> Check:
    text = f"{path.name} is as written" if same else f"{path}: it is of a run with other settings"
    return Check(path.name, same, text)


def _check_checkpoints(folder: RunFolder, settings: str) -> Iterator[tuple[Check, Mark | None]]:
    """Yield a check for each checkpoint, and its mark in the log if it can be read."""
    keys = ("place", "crc") if (folder.path / JOURNAL).is_file() else ("rows", "crc")
    for path in files_in(folder.checkpoints, "*.safetensors"):
        try:
            saved = checkpoint.load(path)
            with checkpoint.fitting(path):
                bound, mark = saved["settings"], Mark(*(int(saved[key]) for key in keys))
        except _PROBLEMS as e:
            yield Check(path.name, False, str(e)), None
            continue
        yield _check_bound(path, same=not settings or bound == settings), mark
