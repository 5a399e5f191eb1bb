"""The runs behind the golden traces. After a change that is meant to alter them, regenerate with

    python -m tests.golden.traces

and say in the change why. Traces hold times, clients, tickets, staleness and fates; no weights and no losses, which may
differ from machine to machine. Durations are drawn from `uniform`, which needs no function a machine may round its way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tarry

FOLDER = Path(__file__).parent

METHODS: dict[str, Any] = {"fedbuff": {"name": "fedbuff", "buffer": 3}, "orthofl": {"name": "orthofl"}}

#: seven clients, four at a time drawn at random; some visits fail, one client comes late and one goes for a while
SETTINGS: dict[str, Any] = {
    "task": {"name": "digits", "hidden": 4, "limit": 140},
    "clients": 7,
    "concurrency": 4,
    "delay": {"name": "uniform", "low": 1.0, "high": 9.0},
    "failure_rate": 0.1,
    "availability": {"2": [[6.5, 40.0]], "5": [[0.0, 12.0], [20.0, 40.0]]},
    "steps": 1,
    "batch": 4,
    "time": 40.0,
    "eval_every": 15.0,
    "seed": 11,
}

KEPT = ("kind", "time", "version", "updates", "client", "ticket", "visit", "staleness", "stepped", "seconds")


def rows(name: str) -> list[dict[str, Any]]:
    """The trace as it is now."""
    seen: list[dict[str, Any]] = []

    def note(e: tarry.Event) -> None:
        seen.append({field: getattr(e, field) for field in KEPT if getattr(e, field) not in (-1, None)})

    tarry.run(METHODS[name], callbacks=[note], **SETTINGS)
    return seen


def path(name: str) -> Path:
    return FOLDER / f"{name}.jsonl"


if __name__ == "__main__":
    for name in METHODS:
        path(name).write_text("".join(json.dumps(row) + "\n" for row in rows(name)))
