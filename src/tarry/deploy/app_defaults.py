"""Settings that a run config leaves out: the kind of client app, the folder, and for apps that do not use tarry the
number of clients and what Flower's own templates call learning rate and rounds."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..record.run_folder import RunFolder
from .app_code import client_kind
from .wire import MessageGrid, Unreachable

__all__ = ["OUT", "complete_config", "default_folder"]

OUT = (
    "TARRY_OUT"  # environment variable: the folder of the server's record, for apps whose run config does not name one
)

log = logging.getLogger("tarry")
_BUDGETS = frozenset({"time", "updates", "rounds", "target"})
_SETTLED = 3.0  # seconds without a new node after which the nodes present are counted
_POLL = 0.5


def default_folder(run: str) -> str:
    """Return the folder of the server's record for a run config that does not name one."""
    return os.environ.get(OUT) or f"tarry-federation-{run}"


def complete_config(
    given: Mapping[str, Any], grid: MessageGrid, *, sleep: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Return a run config with everything that the server needs."""
    config = {"client": client_kind(), "out": default_folder(grid.run), **given}
    if config["client"] == "tarry":
        return config
    if "clients" not in config:
        config["clients"] = _recorded_clients(Path(config["out"])) or _count_nodes(grid, sleep)
        log.info("clients = %d, the nodes that are here; set `clients` if more may join", config["clients"])
    if "learning-rate" in config:
        config.setdefault("lr", config["learning-rate"])
    rounds, per_round = config.get("num-server-rounds"), int(config["clients"])
    if isinstance(rounds, int) and not _BUDGETS & config.keys():
        config["updates"] = rounds * per_round
        log.info("updates = %d: num-server-rounds = %d for each of %d clients", rounds * per_round, rounds, per_round)
    return config


def _recorded_clients(out: Path) -> int | None:
    """Return the number of clients of the federation that is resumed."""
    run = RunFolder(out)
    found = run.written_settings().get("clients") if run.spec.is_file() else None
    return found if isinstance(found, int) else None


def _count_nodes(grid: MessageGrid, sleep: Callable[[float], None]) -> int:
    """Wait for nodes until no further one has come for a while; return their number."""
    count, quiet = 0, 0.0
    while not count or quiet < _SETTLED:
        try:
            now = len(grid.nodes())
        except Unreachable:
            now = count
        quiet = quiet + _POLL if now == count else 0.0
        count = now
        sleep(_POLL)
    return count
