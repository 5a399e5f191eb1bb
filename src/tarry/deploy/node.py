"""A SuperNode that looks for its next message at once: `flower-supernode` with the same arguments, less a long sleep.

    python -m tarry.deploy.node --superlink HOST:PORT ...

Flower's own sleeps 3 s whenever there is nothing to do, so a client that is handed one ticket at a time spends them
between any two. Here it is 0.4 s, and its half seconds are tenths. With another version of Flower than is tested, it is
Flower's own.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

__all__ = ["main"]

_TESTED = "1.41.0"
_IDLE, _WAITING = 0.4, 0.1  # seconds: for a message from the link, and for its own app's answer


def main() -> None:
    """As `flower-supernode`."""
    from importlib.metadata import version

    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    if version("flwr") == _TESTED:
        quick = SimpleNamespace(sleep=lambda seconds: time.sleep(_IDLE if seconds > 1 else _WAITING))
        setattr(start_client_internal, "time", quick)  # noqa: B010 - a module's own name for a module
    flower_supernode()


if __name__ == "__main__":
    main()
