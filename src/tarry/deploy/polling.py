"""Shorter polling intervals of Flower: they take most of an update's time beside training.

                                                              Flower       here
    an idle SuperNode polls for work every                    3 s          0.3 s after its last work, rising to 3 s
    a SuperNode polls its app for the reply every             0.5 s        0.1 s
    a process polls for the content of a message every        1 s          0.05 s, then twice as long, to 1 s

These are constants inside Flower that no option reaches. They are changed only in processes that tarry starts, and only
with the version of Flower that is tested; any other version stays as it is.
"""

from __future__ import annotations

import time
from importlib.metadata import version

__all__ = ["shorten_polling"]

_TESTED = "1.41.0"
_IDLE, _LONGER, _WAITING = 0.3, 1.4, 0.1
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

    The next ticket mostly comes right after a reply. When none comes, many nodes must not overload the link.
    """

    def __init__(self) -> None:
        self._idle = 0  # polls without work since the last work

    def sleep(self, seconds: float) -> None:
        if seconds <= 1:
            self._idle = 0
            time.sleep(_WAITING)
        else:
            time.sleep(min(seconds, _IDLE * _LONGER**self._idle))
            self._idle = min(self._idle + 1, 20)
