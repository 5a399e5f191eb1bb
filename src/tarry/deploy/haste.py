"""Flower's waits, shortened: they are most of what an update costs beside training.

    a SuperNode that has nothing to do sleeps 3 s                        0.4 s
    a SuperNode looks every 0.5 s whether its app has answered           0.1 s
    whoever finds a message whose content is still on its way waits 1 s  0.05 s, then twice as long, to 1 s

These are numbers inside Flower that no option reaches. They are changed in processes of ours alone, and with the very
version that is tested; with any other, Flower is as it is.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from types import SimpleNamespace

__all__ = ["hasten"]

_TESTED = "1.41.0"
_IDLE, _WAITING = 0.4, 0.1
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
    quick = SimpleNamespace(sleep=lambda seconds: time.sleep(_IDLE if seconds > 1 else _WAITING))
    setattr(start_client_internal, "time", quick)  # noqa: B010 - a module's own name for a module
    return True
