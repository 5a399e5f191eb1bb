"""connect: the grid of a server app, from the one that Flower passes to it."""

from __future__ import annotations

import logging
from typing import Any

from ..grid import FlowerGrid
from ..wire import MessageGrid
from .background import BackgroundGrid, TransportLimits
from .flower_link import FlowerLink, address_of

__all__ = ["connect"]

log = logging.getLogger("tarry")
_MEMORY = 256 << 20  # bytes of messages in memory; at least two replies


def connect(grid: Any, run: str, reply_bytes: int) -> MessageGrid:
    """Return the grid for a server app whose replies have at most so many bytes."""
    address = address_of(grid)
    if address is None:
        log.info("messages are exchanged in the driver's own thread: this is not the HTTP grid of Flower 1.41")
        return FlowerGrid(grid, run)
    limits = TransportLimits(reply_bytes=reply_bytes, waiting_bytes=max(_MEMORY, 2 * reply_bytes))
    return BackgroundGrid(FlowerLink(address, reply_bytes=reply_bytes), limits)
