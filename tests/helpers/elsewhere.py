"""Runs that begin under one executor and resume under another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers.interrupted import interrupted_run

SETTINGS: dict[str, Any] = {
    "method": "orthofl",
    "task": {"name": "digits", "limit": 300, "hidden": 8},
    "clients": 5,
    "updates": 30,
    "epochs": 1,
    "eval_every": 200.0,
    "failure_rate": 0.1,
    "seed": 3,
}
#: the settings with which a run begins, by its executor: those that the others do not take, too
BEGUN: dict[str, dict[str, Any]] = {
    "inline": {"executor": "inline", "lookahead": 2},
    "by default": {},
    "workers": {"workers": 2, "lookahead": 2, "worker_timeout": 30.0},
    "pool": {"executor": "pool", "workers": 2, "worker_timeout": 0.0},
    "batched": {"executor": "batched", "workers": 2},
    "auto": {"executor": "auto", "workers": 2},
}
#: what `resume` is given
RESUMED: dict[str, dict[str, Any]] = {
    "inline": {"executor": "inline"},
    "pool": {"executor": "pool"},
    "pool of 2": {"executor": "pool", "workers": 2, "lookahead": 1},
    "batched": {"executor": "batched"},
    "auto": {"executor": "auto", "workers": 2},
}
#: executors whose results are the same to the bit
EXACT = {"inline", "by default", "workers", "pool", "pool of 2", "ray"}


def begun_run(out: Path, first: str, **more: Any) -> None:
    """Run up to the 12th update, with checkpoints."""
    given = {**SETTINGS, **BEGUN.get(first, {}), "checkpoint_every": 1e-9, **more}
    interrupted_run(out, lambda e: e.kind == "arrival" and e.updates == 12, **given)
