"""A process with all its descendants: their peak memory, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

LOOK = 0.5  # seconds between two readings of the memory
GRACE = 10.0  # seconds from the request to end to the end


class Family:
    """Start the command; `wait` supervises it. Without /proc, only the process itself can be ended."""

    def __init__(self, command: list[str], **options: Any):
        self.process = subprocess.Popen(command, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **options)
        self.members: dict[int, str] = {}  # process id → start time, since ids are reused
        self.peak_mb = 0

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, or None after the time limit. All processes have ended then."""
        until = time.monotonic() + seconds
        try:
            while (code := self._over(LOOK)) is None:
                self._look()
                if time.monotonic() > until:
                    return None
            return code
        finally:
            self._end()

    def _over(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _look(self) -> None:
        """Read the memory, unless a process started or ended meanwhile: shared memory might be counted twice."""
        before = self._find()
        bytes_ = sum(map(_resident, before))
        if self._find() == before:
            self.peak_mb = max(self.peak_mb, bytes_ // 10**6)

    def _find(self) -> dict[int, str]:
        alive = _processes()
        known = {self.process.pid, *(p for p, began in self.members.items() if alive.get(p, (0, ""))[1] == began)}
        grew = True
        while grew:
            new = {p for p, (parent, _) in alive.items() if parent in known and p not in known}
            known, grew = known | new, bool(new)
        self.members = {p: alive[p][1] for p in known if p in alive}
        return self.members

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            if self._over(GRACE) is None:
                self.process.kill()
                self.process.wait()
        alive = _processes()
        for p, began in self.members.items():
            if p in alive and alive[p][1] == began:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(p, signal.SIGKILL)


def _processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the start time of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            found[int(stat.parent.name)] = (int(fields[1]), fields[19])
    return found


def _resident(process: int) -> int:
    """Return bytes; shared memory is divided between its processes, so that a sum counts it once."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
