"""A pause while files cannot be written: the server waits for space or permission, and continues from its record.

A full disk ends the driver, not its process. What was accepted is in the journal; the driver that is made from it
afterwards belongs to the same run of Flower, so replies to open tickets are still accepted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ...core.errors import StorageError
from ...record.storage import check_writable

__all__ = ["continue_when_writable"]

log = logging.getLogger("tarry")
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds; each pause is twice as long as the one before
_STEP = 0.2  # seconds between two looks at `should_stop`


def continue_when_writable(
    drive: Callable[[], str],
    folder: Path,
    should_stop: Callable[[], bool],
    *,
    on_pause: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Call `drive`, again after each StorageError once the folder can be written; return its result, or "stopped".

    `on_pause` gets the reason of a pause. Each reason is logged once.
    """
    pause, logged = _FIRST_PAUSE, ""
    while True:
        try:
            check_writable(folder)
            return drive()
        except StorageError as e:
            reason = str(e)
        if reason != logged:
            log.error("%s. Nothing accepted is lost; the federation continues when this file can be written", reason)
            logged = reason
        on_pause(reason)
        left, pause = pause, min(2 * pause, _LONGEST_PAUSE)
        while left > 0:
            if should_stop():
                return "stopped"
            sleep(_STEP)
            left -= _STEP
