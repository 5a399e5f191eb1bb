"""Watch other processes and wait for them, with limits that a slow machine under load does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

#: seconds until a wait fails; generous, because a wait ends as soon as its condition holds
PATIENCE = 300.0


def wait_until(condition: Callable[[], object], explain: Callable[[], str] = str, *, within: float = PATIENCE) -> None:
    """Return when the condition holds; fail with the explanation when it does not hold in time."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"{within:g} s have passed {explain()}"
        time.sleep(0.005)


def process_status(pid: int) -> list[str]:
    """State, parent and so on of a process; [] if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def process_ended(pid: int) -> bool:
    """Return whether the process does not exist or is a zombie."""
    return (process_status(pid) or ["Z"])[0] == "Z"


def descendants(pid: int) -> set[int]:
    """The running processes that descend from this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        status = process_status(int(path.name))
        if status and status[0] != "Z":
            children.setdefault(int(status[1]), []).append(int(path.name))
    found, left = set[int](), [pid]
    while left:
        new = children.get(left.pop(), [])
        found.update(new)
        left += new
    return found
