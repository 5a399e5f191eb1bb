"""Shorter polling intervals of Flower: they take most of an update's time beside training.

                                                              Flower       here
    an idle SuperNode polls for work every                    3 s          0.1 s after its last work, rising to 3 s,
                                                                           and 10 times as long as a poll takes
    a SuperNode polls its app for the reply every             0.5 s        0.05 s
    a process polls for the content of a message every        1 s          0.05 s, then twice as long, to 1 s

These are constants inside Flower that no option reaches. They are changed only in processes that tarry starts, and only
where the code of the installed version is as expected; a log line names what stays as it is. TARRY_SHORT_POLLING=0 in
the environment leaves all of them as they are.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

__all__ = ["SWITCH", "idle_seconds", "shorten_polling"]

log = logging.getLogger("tarry")
SWITCH = "TARRY_SHORT_POLLING"
_IDLE, _LONGER, _LONGEST_IDLE, _WAITING = 0.1, 1.4, 3.0, 0.05
_SLOW_LINK = 15.0  # seconds between polls of a link that answers slowly, at most
_FIRST, _LONGEST = 0.05, 1.0


def shorten_polling() -> bool:
    """Shorten the intervals in this process; return whether all of them are short now."""
    if os.environ.get(SWITCH) == "0":
        log.warning("%s=0: Flower's polling intervals stay as they are", SWITCH)
        return False
    done = [_try(_shorten_pulls, "polling for the content of messages"), _try(_shorten_idling, "polling of SuperNodes")]
    return all(done)


def _try(change: Callable[[], None], what: str) -> bool:
    try:
        change()
    except (ImportError, AttributeError, TypeError, KeyError) as e:
        log.warning("flwr %s: %s keeps Flower's own intervals (%s: %s)", version("flwr"), what, type(e).__name__, e)
        return False
    return True


def _shorten_pulls() -> None:
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, pull_objects

    defaults: list[Any] = [pull.__kwdefaults__ for pull in (pull_objects, pull_and_inflate_object_from_tree)]
    for known in defaults:
        known["initial_backoff"], known["backoff_cap"]
    for known in defaults:
        known.update(initial_backoff=_FIRST, backoff_cap=_LONGEST)


def _shorten_idling() -> None:
    module: Any = importlib.import_module("flwr.supernode.start_client_internal")
    if not callable(module.time.sleep):
        raise TypeError("it sleeps in another way")
    module.time = _Clock()  # the module's own name for a module


class _Clock:
    """The sleeps of a SuperNode's loop: short while its app works, longer the longer it is idle.

    The next ticket mostly comes right after a reply. When none comes, many nodes must not overload the link: what a
    node sleeps between two polls is at least 10 times what a poll takes, so that polls leave room for work.
    """

    def __init__(self) -> None:
        self._idle = 0  # polls without work since the last work
        self._woke = time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds <= 1:
            self._idle = 0
            time.sleep(_WAITING)
        else:
            time.sleep(idle_seconds(self._idle, time.monotonic() - self._woke if self._idle else 0.0))
            self._idle = min(self._idle + 1, 20)
        self._woke = time.monotonic()


def idle_seconds(polls: int, took: float) -> float:
    """Return how long a node without work sleeps after so many polls, of which the last took so many seconds."""
    return max(min(_LONGEST_IDLE, _IDLE * _LONGER**polls), min(_SLOW_LINK, 10 * took))
