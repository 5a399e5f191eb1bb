"""Flower's waits, shortened: they are most of what an update costs beside training.

    a SuperNode that has nothing to do sleeps 3 s                        0.3 s after its last work, then longer, to 3 s
    a SuperNode looks every 0.5 s whether its app has answered           0.1 s
    whoever finds a message whose content is still on its way waits 1 s  0.05 s, then twice as long, to 1 s

These are numbers inside Flower that no option reaches. They are changed in processes of ours alone, and with the very
version that is tested; with any other, Flower is as it is.
"""

from __future__ import annotations

import time
from importlib.metadata import version

__all__ = ["hasten"]

_TESTED = "1.41.0"
_IDLE, _LONGER, _WAITING = 0.3, 1.4, 0.1
_FIRST, _LONGEST = 0.05, 1.0


def hasten() -> bool:
    """In this process, from now on; whether it was."""
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
    """The sleeps of a SuperNode's loop: long ones when it has nothing to do, short ones while its app is at work.

    The next ticket mostly comes right after an answer. Where none does, many nodes must not wear the link out.
    """

    def __init__(self) -> None:
        self._idle = 0  # looks in vain since the last work

    def sleep(self, seconds: float) -> None:
        if seconds <= 1:
            self._idle = 0
            time.sleep(_WAITING)
        else:
            time.sleep(min(seconds, _IDLE * _LONGER**self._idle))
            self._idle = min(self._idle + 1, 20)
