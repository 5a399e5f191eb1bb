"""Runs a command once for each call on a file that it makes, with this call failing, and checks what is left.

A scenario is a command and the folder it begins with. The calls of an undisturbed run of it are the fault points.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tarry.core.errors import DamagedFile
from tarry.record import checkpoint
from tarry.record.consistency import check_run

HERE = Path(__file__).parent
SHORT, FULL, KILL = -1, -2, -3  # as in interpose.c
_WARM = ["run --clients 2 --updates 2 --out FOLDER/a", "report FOLDER --html FOLDER/page.html"]
_PROGRESS = re.compile(r"\S.*: (personalized )?\d+%")


class Call(NamedTuple):
    """A call on a file, and which of the same calls on the same file it is (from 1)."""

    op: str
    path: str
    number: int = 1
    error: int = 0  # with which it ended

    @property
    def kind(self) -> tuple[str, str]:
        """The operation and the kind of file: numbers in names and the folder of the run do not count."""
        return self.op, re.sub(r"\d+(?=\.safetensors)", "N", re.sub(r"^runs/[^/]+/seed-\d+", "run", self.path))


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    stdout: str
    stderr: str
    calls: list[Call]


class Server:
    """The process of server.py. `work` is a folder for its files, `root` the folder below which calls are seen."""

    def __init__(self, work: Path):
        self.work, self.root = work.resolve(), work.resolve() / "root"
        library = self.work / "interpose.so"
        _compile(library)
        environment = {**os.environ, "LD_PRELOAD": str(library), "TARRY_NUMBA": "0", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), json.dumps([line.split() for line in _WARM])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.work, env=environment,
        )  # fmt: skip
        while self._answer() != "ready":
            pass

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server of the fault injection ended"
        return line.strip()

    def run(self, argv: Sequence[str], fail: Call | None = None, how: int = 0) -> Outcome:
        """Run a command, in which one call fails."""
        log, out, err = (self.work / name for name in ("calls", "stdout", "stderr"))
        log.unlink(missing_ok=True)
        arm = [str(self.root), str(log), *((fail.op, fail.path, fail.number) if fail else ("", "", 0)), how]
        job = {"argv": argv, "cwd": str(self.work), "arm": arm, "stdout": str(out), "stderr": str(err)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        code = int(self._answer())
        return Outcome(code, out.read_text(), err.read_text(), list(_calls(log)))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        assert self._process.returncode == 0


def _compile(library: Path) -> None:
    compiler = shutil.which("cc")
    assert compiler, "the fault injection needs a C compiler: install one that is called cc (apt install gcc)"
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(HERE / "interpose.c"), "-ldl"], check=True)


def _calls(log: Path) -> Iterator[Call]:
    seen = Counter[tuple[str, str]]()
    for line in log.read_text().splitlines() if log.exists() else ():
        op, path, error = line.split("\t")
        seen[op, path] += 1
        yield Call(op, path, seen[op, path], int(error))


@dataclass
class Scenario:
    """A command on the folder `start` (None: an empty one), and what its undisturbed run did."""

    server: Server
    argv: list[str]
    start: Path | None = None
    same_bits: bool = True  # whether the weights do not depend on times that were measured
    calls: list[Call] = field(init=False)
    expected: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        done = self._from_start(None, 0)
        assert done.code == 0, done.stderr
        self.calls, self.expected = done.calls, _files(self.server.root)
        seen = {call.path for call in self.calls if call.op in ("open-write", "rename")}
        before = set() if self.start is None else _names(self.start)
        unseen = _names(self.server.root) - before - seen
        assert not unseen, f"written by calls that interpose.c does not see: {unseen}"

    def _from_start(self, fail: Call | None, how: int) -> Outcome:
        shutil.rmtree(self.server.root, ignore_errors=True)
        if self.start is None:
            self.server.root.mkdir()
        else:
            shutil.copytree(self.start, self.server.root)
        return self.server.run(self.argv, fail, how)

    def visit(self, point: Call, how: int) -> str:
        """Make the call fail; return what is wrong afterwards, "" if nothing is."""
        before = {} if self.start is None else _newest(self.start)
        done = self._from_start(point, how)
        found = [call.error for call in done.calls if call[:3] == point[:3]]
        try:
            if how == KILL:
                assert done.code, "it was not killed"
            else:
                assert found == [{SHORT: 0, FULL: errno.ENOSPC}.get(how, how)], f"the call did not fail: {found}"
                self._check_error(point, how, done)
            self._check_checkpoints(before, done)
            if done.code:
                self._recover()
            self._check_end()
        except AssertionError as e:
            last = "\n    ".join(done.stderr.strip().splitlines()[-6:])
            text = f"{point.op} {point.path} #{point.number} ({name_of(how)}): {e}\n  exit code {done.code}\n    {last}"
            return text.replace(str(self.server.root), "ROOT")
        return ""

    def _check_error(self, point: Call, how: int, done: Outcome) -> None:
        """An error is one line that names the file and a remedy."""
        assert "Traceback" not in done.stderr, "a traceback"
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.startswith("error:")]
        assert all(line in errors or _PROGRESS.fullmatch(line) for line in lines), "more than an error"
        assert len(errors) == (done.code != 0), f"{len(errors)} errors"
        for error in errors:
            failed = {call.path for call in done.calls if call.error == errno.ENOSPC} if how == FULL else {point.path}
            paths = [self.server.root / path.removesuffix(".part") for path in failed]
            named = any(str(path) in error or f"{path.parent}:" in error for path in paths)
            assert named, "the error names neither the file nor its folder"
            assert re.search(r"\([^()]+\); \w|cannot be read: [^:;]+; \w|is at work", error), "no remedy"
        before = set() if self.start is None else _names(self.start)
        left = {name for name in _names(self.server.root) - before if name.endswith(".part")}
        assert not left, f"left behind: {left}"

    def _check_checkpoints(self, before: dict[Path, int], done: Outcome) -> None:
        """Every checkpoint that was complete is there, or newer ones are; none is written again."""
        for path in [Path(call.path) for call in done.calls if call.op == "rename" and not call.error]:
            if path.parent.name == "checkpoints":
                run, number = path.parent.parent, int(path.stem)
                assert number > before.get(run, 0), f"{path} is written again: the run began from the start"
                before[run] = number
        found = _newest(self.server.root)
        for run, number in before.items():
            if not (self.server.root / run / "result.json").exists():
                assert found.get(run) == number, f"checkpoint {number} of {run} is lost: {found}"

    def _recover(self) -> None:
        before = _newest(self.server.root)
        alone = self.server.root / "run"
        argv = ["resume", str(alone)] if (alone / "spec.toml").is_file() else self.argv
        done = self.server.run(argv)
        assert done.code == 0, f"{' '.join(argv)} fails afterwards: {done.stderr}"
        self._check_checkpoints(before, done)

    def _check_end(self) -> None:
        """The folder has the same files, weights and rows as after an undisturbed run."""
        root, found = self.server.root, _files(self.server.root)
        assert sorted(found) == sorted(self.expected), "the folder has other files: " + str(
            sorted(found.keys() ^ self.expected.keys())
        )
        for name in found:
            if name.endswith(("events.jsonl", "model.safetensors", "arrivals.csv", "compare.json")) and self.same_bits:
                assert found[name] == self.expected[name], f"{name} has another content"
            elif name.endswith("result.json"):
                ends = [json.loads(content)["weights_sha256"] for content in (found[name], self.expected[name])]
                assert ends[0] == ends[1] or not self.same_bits, f"{name} has other weights"
                wrong = [check.text for check in check_run((root / name).parent) if not check.ok]
                assert wrong == [], f"verify: {wrong}"
            elif name.endswith(".part") or (name.endswith(".html") and self.argv[0] == "report"):
                assert found[name] == self.expected[name], f"{name} has another content"


def _files(root: Path) -> dict[str, bytes]:
    """The content of the files below a folder, by name; checkpoints without their numbers."""
    return {
        re.sub(r"checkpoints/\d+", "checkpoints/N", str(path.relative_to(root))): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def _newest(root: Path) -> dict[Path, int]:
    """The number of the newest checkpoint of each run below a folder. It must be complete."""
    newest: dict[Path, int] = {}
    for path in sorted(root.rglob("checkpoints/*.safetensors")):
        newest[path.parent.parent.relative_to(root)] = int(path.stem)
    for run, number in newest.items():
        path = root / run / "checkpoints" / f"{number:08d}.safetensors"
        try:
            checkpoint.load(path)
        except DamagedFile as e:
            raise AssertionError(str(e)) from e
    return newest


def name_of(how: int) -> str:
    """The name of a way to fail."""
    names = {SHORT: "short write", FULL: "full disk", KILL: "kill"}
    return names[how] if how < 0 else errno.errorcode[how]


def every_way(point: Call) -> list[int]:
    """All the ways in which a call is made to fail."""
    if point.op in ("stat", "close"):
        return [errno.EIO, errno.EACCES]
    ways = [errno.ENOSPC, errno.EIO, errno.EACCES, KILL]
    ways += [SHORT] if point.op == "write" else []
    return ways + ([FULL] if point.op in ("write", "open-write", "mkdir", "rename", "fsync", "ftruncate") else [])


_FIRST = {
    "write": SHORT,
    "open-write": errno.ENOSPC,
    "open-read": errno.EACCES,
    "opendir": errno.EIO,
    "rename": errno.ENOSPC,
    "mkdir": errno.ENOSPC,
    "unlink": errno.EACCES,
}


def one_way(point: Call) -> list[int]:
    """The way in which a call of this operation fails most often; none for calls that hardly ever fail."""
    return [] if point.op in ("stat", "close") else [_FIRST.get(point.op, errno.EIO)]


def kinds(calls: Sequence[Call], skip: set[tuple[str, str]]) -> list[Call]:
    """One call of each operation on each kind of file, in the middle of the run; `skip` is known, and gets them."""
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault(call.kind, []).append(call)
    chosen = [group[len(group) // 2] for kind, group in groups.items() if kind not in skip]
    skip.update(groups)
    return chosen
