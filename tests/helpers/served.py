"""`serve` of tarry's server app, with its driver on the clock of a grid in memory."""

from __future__ import annotations

import signal
from typing import Any

from tarry.deploy.config import DeployConfig
from tarry.deploy.server import driver as module
from tarry.deploy.server_app import serve

__all__ = ["served"]


def served(grid: Any, setting: DeployConfig) -> str:
    """`serve` with the driver on the grid's clock."""
    plain, before = module.Driver.__init__, [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]

    def init(self, *args, **named):
        plain(self, *args, **named, clock=grid.clock)

    run = module.Driver.run
    module.Driver.__init__ = init
    module.Driver.run = lambda self, stop, on_progress: run(self, stop, on_progress=on_progress, sleep=grid.clock.sleep)
    try:
        return serve(grid, setting)
    finally:
        module.Driver.__init__, module.Driver.run = plain, run
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
