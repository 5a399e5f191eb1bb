"""Damage: a file of a run folder is changed, cut, made longer, deleted or replaced by another run's."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from .checks import finish, is_finished, require, sha256_of
from .commands import Child, Failure, command
from .drill import Drill, draw_moment, finish_run, reference_of, start
from .settings import RunSetting, draw_setting

__all__ = ["damage"]

_TRIES = 4  # copies of one folder that are damaged, each in another way
#: where a message about a file names another: a setting that was changed may be the digest of the settings that was
_TOGETHER = {"meta.json": "spec.toml", "spec.toml": "meta.json"}
#: files that hold nothing, or that a kill has left unfinished
_UNUSED = (".lock", ".part")

Change = Callable[[Random, Path, Path], None]


def damage(drill: Drill) -> None:
    """A damaged folder: every command names the file, or the weights are those of the whole run."""
    setting = draw_setting(drill.rng, drill.method)
    drill.describe(setting)
    out, other = drill.folder / "run", drill.folder / "other"
    stops = drill.rng.random() < 0.6
    _make(drill, setting, out, stops=stops)
    seed = setting.flags.index("--seed") + 1
    flags = (*setting.flags[:seed], str(1000 + drill.seed), *setting.flags[seed + 1 :])
    _make(drill, replace(setting, flags=flags), other, stops=stops)
    whole = drill.folder / "whole"
    shutil.copytree(out, whole)
    finish_run(drill, setting, whole)
    expected = sha256_of(reference_of(drill, setting, whole))
    require(sha256_of(whole) == expected, f"{whole}: the weights are not those of the uninterrupted run")
    for number in range(_TRIES):
        copy = drill.folder / f"damaged-{number}"
        shutil.copytree(out, copy)
        path, change = _draw_file(drill.rng, copy), drill.rng.choice(sorted(_CHANGES))
        try:
            _damage_and_check(drill, copy, path, change, other, expected)
        except Failure as e:
            raise Failure(f"{path} ({change}): {e}") from e
        shutil.rmtree(copy)


def _make(drill: Drill, setting: RunSetting, out: Path, *, stops: bool) -> None:
    """Run in a folder to the end, or to a kill after it has begun."""
    child = start(drill, setting, out)
    if stops:
        moment = draw_moment(drill.rng, out)
        if child.wait(lambda: (out / "events.jsonl").is_file() and moment()):
            child.kill()
            drill.counts["kills"] += 1
            child.wait()
            child.wait_for_workers()
            return
    finish(child)


def _draw_file(rng: Random, folder: Path) -> Path:
    """Draw a file of a folder; the files of a folder in it count as one."""
    entry = rng.choice(
        sorted(p for p in folder.iterdir() if p.name != ".lock" and not (p.is_dir() and not any(p.iterdir())))
    )
    return rng.choice(sorted(entry.iterdir())) if entry.is_dir() else entry


def _damage_and_check(drill: Drill, folder: Path, path: Path, change: str, other: Path, expected: str) -> None:
    before, was_finished = path.read_bytes(), is_finished(folder)
    _CHANGES[change](drill.rng, path, other / path.relative_to(folder))
    after = path.read_bytes() if path.exists() else None
    drill.counts["damaged files"] += after != before
    where = path.name if path.parent == folder else f"{path.parent.name}/*{path.suffix}"
    drill.counts[f"damaged files ({where})"] += after != before
    must_notice = was_finished and not path.name.endswith(_UNUSED) and _content(path, before) != _content(path, after)
    if must_notice and not (after is None and path.parent.name == "checkpoints"):  # of which older ones are deleted
        _check_noticed(folder, path)
    _check_named(path, command("verify", folder), 0, 1, 2)
    _check_named(path, command("report", folder, "--html", folder / "report.html"))
    child = command("resume", folder)
    _check_named(path, child)
    if child.code == 0:
        require(is_finished(folder), "tarry resume ended without a result")
        require(sha256_of(folder) == expected, "other weights than without damage")


def _content(path: Path, data: bytes | None) -> Any:
    """Return what a file means: white space between the words of JSON and comments of TOML mean nothing."""
    parse: dict[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads}
    try:
        return data if data is None or path.suffix not in parse else parse[path.suffix](data.decode())
    except ValueError:
        return data


def _check_noticed(folder: Path, path: Path) -> None:
    """Require that `tarry verify` finds the damage of a finished folder."""
    missing_result = path.name == "result.json" and not path.exists()
    text = finish(command("verify", folder), 0 if missing_result else 1)
    if missing_result:
        require("not finished" in text, f"tarry verify does not notice it: {text}")
    else:
        failed = "".join(line for line in text.splitlines() if line.startswith("FAILED"))
        require(_is_named(path, failed), f"tarry verify does not name the file: {text}")


def _check_named(path: Path, child: Child, *codes: int) -> None:
    text = finish(child, *(codes or (0, 2)))
    if child.code and not ("no finished run is here" in text or _is_named(path, text)):
        raise Failure(f"{child.title} does not name the file: {text}")


def _is_named(path: Path, text: str) -> bool:
    return path.name in text or _TOGETHER.get(path.name, path.name) in text


def _flip(rng: Random, path: Path, _: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _cut(rng: Random, path: Path, _: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))] if data else b"")


def _lengthen(rng: Random, path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 200)))


def _delete(_: Random, path: Path, __: Path) -> None:
    path.unlink()


def _replace(_: Random, path: Path, other: Path) -> None:
    """Put another run's file in its place: that of the same name, else any of the same kind."""
    found = [other, *sorted(other.parent.glob(f"*{other.suffix}"))]
    if there := next((p for p in found if p.is_file()), None):
        shutil.copy(there, path)


_CHANGES: dict[str, Change] = {
    "a bit flipped": _flip,
    "cut": _cut,
    "made longer": _lengthen,
    "deleted": _delete,
    "of another run": _replace,
}
