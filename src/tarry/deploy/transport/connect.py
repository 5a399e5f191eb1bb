"""connect: the grid of a server app, from the one that Flower passes to it and the addresses of further links."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...core.errors import BadInput
from ..grid import FlowerGrid
from ..wire import MessageGrid
from .background import BackgroundGrid, TransportLimits
from .flower_link import Address, FlowerLink, address_of
from .further import FurtherLink, take_run
from .several import SeveralLinks

__all__ = ["connect"]

log = logging.getLogger("tarry")
_MEMORY = 256 << 20  # bytes of messages in memory, for each link; at least one reply and one request


def connect(
    grid: Any,
    run: str,
    reply_bytes: int,
    *,
    further: Sequence[str] = (),
    root_certificates: str | None = None,
) -> MessageGrid:
    """Return the grid for a server app whose replies have at most so many bytes.

    `further`: addresses of more SuperLinks; `root_certificates`: a file for their TLS, without which they have none.
    """
    address = address_of(grid)
    if address is None:
        if further:
            raise BadInput("links: several SuperLinks need the HTTP grid of Flower 1.41; name none")
        log.info("messages are exchanged in the driver's own thread: this is not the HTTP grid of Flower 1.41")
        return FlowerGrid(grid, run)
    limits = TransportLimits(reply_bytes=reply_bytes, waiting_bytes=_MEMORY)
    news = threading.Event()

    def connected(to: Address) -> MessageGrid:
        return BackgroundGrid(FlowerLink(to, reply_bytes=reply_bytes), limits, news=news)

    if not further:
        return connected(address)
    trust = Path(root_certificates).read_bytes() if root_certificates else None
    others = [FurtherLink(at, partial(take_run, at, trust), connected, news) for at in further]
    return SeveralLinks([connected(address), *others])
