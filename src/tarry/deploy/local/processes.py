"""Processes of a federation on this machine: started with a log each, ended by process id and start time.

The system reuses the id of a process that has ended. So the start time of a process is kept beside its id, and no
signal is sent to a process with another start time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...core.errors import BadInput
from ...core.storage import storage_errors
from ...record.shapes import between, fields, list_of, read_record, text
from ...record.storage import TEXT_LIMIT, make_folder, write_atomic

__all__ = ["Process", "Processes", "began", "free_ports"]


_PID = between(2, 2**31 - 1)  # 0 and 1 are the groups of this process and of all
_PROCESSES = list_of(fields({"name": text, "pid": _PID, "began": text, "command": list_of(text)}, closed=True))


@dataclass(frozen=True)
class Process:
    """A process that was started here; it leads a process group of its own, with its children."""

    name: str
    pid: int
    began: str
    command: list[str]

    @property
    def alive(self) -> bool:
        return began(self.pid) == self.began


def began(pid: int) -> str | None:
    """The start time of a process, relative to this boot; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else f"{boot}:{fields[19]}"


class Processes:
    """The processes of a folder, by name; the list on disk is updated with every start."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self._folder, self._file = folder, folder / "processes.json"
        self._environment = {**os.environ, **environment}
        self._known: dict[str, Process] = {}
        self._children: set[int] = set()  # children of this process, which has to wait for them
        if self._file.is_file():
            self._known = {p["name"]: Process(**p) for p in read_record(self._file, _PROCESSES, TEXT_LIMIT)}

    def __getitem__(self, name: str) -> Process | None:
        return self._known.get(name)

    def alive(self, name: str) -> bool:
        return name in self._known and self._known[name].alive

    def names(self) -> list[str]:
        return list(self._known)

    def start(self, name: str, command: Sequence[str]) -> Process:
        """Start a process with its output in logs/NAME.log."""
        logs = self._folder / "logs"
        make_folder(logs)
        program = shutil.which(command[0], path=self._environment.get("PATH"))
        if program is None:
            raise BadInput(f"{command[0]}: there is no such program; pip install 'tarry[flower]'")
        flags, log = os.O_WRONLY | os.O_CREAT | os.O_APPEND, str(logs / f"{name}.log")
        with storage_errors(log):  # posix_spawn would name the program, not the log
            os.close(os.open(log, flags, 0o644))
        files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o644),
                 (os.POSIX_SPAWN_DUP2, 1, 2)]  # fmt: skip
        pid = os.posix_spawn(program, list(command), self._environment, file_actions=files, setsid=True)
        self._children.add(pid)
        self._known[name] = Process(name, pid, began(pid) or "", list(command))
        self._save()
        return self._known[name]

    def end(self, *groups: Sequence[str], within: float = 10.0) -> list[str]:
        """End groups of processes one after the other; return the names of those that were running.

        Processes and their children get SIGTERM, and SIGKILL if they run after `within` seconds.
        """
        ended = list[str]()
        for names in groups:
            if ours := [self._known[n] for n in names if n in self._known]:
                ended += self._end(ours, within)
        if any(groups):
            self._save()
        return ended

    def _end(self, ours: Sequence[Process], within: float) -> list[str]:
        ended = [p.name for p in ours if p.alive]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for p in ours:
                self._signal(p, number)
            until = time.monotonic() + within
            while any(p.alive for p in ours) and time.monotonic() < until:
                time.sleep(0.05)
                self._reap()
        for p in ours:
            self._known.pop(p.name)
        return ended

    @staticmethod
    def _signal(p: Process, number: signal.Signals) -> None:
        now = began(p.pid)
        if now is not None and now != p.began:
            return  # the id belongs to another process now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(p.pid, number)  # the id of a group is not reused while a member lives

    def _reap(self) -> None:
        for pid in list(self._children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._children.discard(pid)

    def _save(self) -> None:
        write_atomic(self._file, json.dumps([asdict(p) for p in self._known.values()], indent=1).encode())


def free_ports(n: int) -> list[int]:
    """Return free ports of the loopback interface."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(n):
            s = stack.enter_context(socket.socket())
            s.bind(("127.0.0.1", 0))
            ports.append(s.getsockname()[1])
    return ports
