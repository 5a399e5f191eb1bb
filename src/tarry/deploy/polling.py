"""Shorter polling intervals of Flower: they take most of an update's time beside training.

                                                              Flower       here
    an idle SuperNode polls for work every                    3 s          0.3 s after its last work, rising to 3 s,
                                                                           and 10 times as long as a poll takes
    a SuperNode polls its app for the reply every             0.5 s        0.1 s
    a process polls for the content of a message every        1 s          0.05 s, then twice as long, to 1 s

These are constants inside Flower that no option reaches. They are changed only in processes that tarry starts, and only
with the version of Flower that is tested; any other version stays as it is.
"""

from __future__ import annotations

import time
from importlib.metadata import version

__all__ = ["idle_seconds", "shorten_polling"]

_TESTED = "1.41.0"
_IDLE, _LONGER, _LONGEST_IDLE, _WAITING = 0.3, 1.4, 3.0, 0.1
_SLOW_LINK = 15.0  # seconds between polls of a link that answers slowly, at most
_FIRST, _LONGEST = 0.05, 1.0


def shorten_polling() -> bool:
    """Shorten the intervals in this process; return False with an untested version of Flower."""
    if version("flwr") != _TESTED:
        return False
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, pull_objects
    from flwr.supernode import start_client_internal

    for pull in (pull_objects, pull_and_inflate_object_from_tree):
        assert pull.__kwdefaults__ is not None
        pull.__kwdefaults__.update(initial_backoff=_FIRST, backoff_cap=_LONGEST)
    setattr(start_client_internal, "time", _Clock())  # noqa: B010 - a module's own name for a module
    return True


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
