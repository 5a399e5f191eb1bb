"""Real federations on the loopback, for tests: wait for them, count their updates, and check their record."""

from __future__ import annotations

import json
import os
import signal
import time

from tarry.deploy.local.local_federation import LocalFederation
from tarry.record.result import Result
from tarry.record.rows import read_rows
from tarry.runs.replay import replay
from tests.helpers.processes import PATIENCE, wait_until

SMALL = {"task": "digits:limit=400,hidden=16", "epochs": 1, "eval-every": 5.0, "stop-within": 5.0}


def over(local: LocalFederation, *, repair: bool = False) -> Result:
    until = time.monotonic() + 2 * PATIENCE
    while not (local.folder / "result.json").is_file():
        assert time.monotonic() < until, (local.folder / "status.json").read_text()
        time.sleep(1.0)
        if repair:
            local.up()
    return Result.read(local.folder)


def update_rows(local: LocalFederation) -> list[dict]:
    path = local.folder / "journal.jsonl"
    return [r for r in read_rows(path) if r["op"] == "update"] if path.is_file() else []


def updates(local: LocalFederation) -> int:
    return len(update_rows(local))


def updates_by_client(local: LocalFederation) -> dict[int, int]:
    path = local.folder / "journal.jsonl"
    rows = list(read_rows(path)) if path.is_file() else []
    who = {h[0]: h[1] for r in rows if r["op"] == "close" for h in r["handouts"]}
    counts = dict.fromkeys(range(8), 0)
    for row in rows:
        if row["op"] == "update":
            counts[who[row["number"]]] += 1
    return counts


def reach(local: LocalFederation, count: int) -> None:
    wait_until(lambda: updates(local) >= count, lambda: _logs(local))


def _logs(local: LocalFederation) -> str:
    paths = [local.folder / "server.log", *sorted((local.flower_dir / "logs").glob("*.log"))]
    return "".join(f"\n== {p.name}\n{p.read_text()[-1500:]}" for p in paths if p.is_file())


def server_pid(local: LocalFederation) -> int:
    return int(json.loads((local.folder / "server.json").read_text())["pid"])


def pid_of(local: LocalFederation, name: str) -> int:
    """The process of the server app ("app"), or one that `up` started."""
    if name == "app":
        return server_pid(local)
    process = local.processes[name]
    assert process is not None
    assert process.alive
    return process.pid


def kill(local: LocalFederation, name: str) -> None:
    os.kill(pid_of(local, name), signal.SIGKILL)


def honest(local: LocalFederation, result: Result) -> None:
    """Every update once, and the weights are what a simulator makes of the record."""
    numbers = [r["number"] for r in update_rows(local)]
    assert len(numbers) == len(set(numbers)) == result.updates
    found = replay(local.folder)
    assert found.first_difference is None
    assert found.weights_sha256 == result.weights_sha256
