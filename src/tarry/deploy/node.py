"""A SuperNode without long sleeps: `flower-supernode`, with the same arguments.

    python -m tarry.deploy.node --superlink HOST:PORT ...

Run as a file it imports nothing but Flower, and so begins in a second and takes a third of the memory.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Run `flower-supernode` with its arguments."""
    from flwr.supernode.cli import flower_supernode

    _shorten_polling()
    threading.excepthook = _end_with_thread
    flower_supernode()


def _end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """End the process after an exception in a thread, so that its supervisor starts it again.

    The heartbeats of a SuperNode come from a thread. Without it the SuperLink takes the node for absent for good.
    """
    threading.__excepthook__(failed)
    os._exit(1)


def _shorten_polling() -> None:
    """Load polling.py by its path: importing it by name would import torch."""
    spec = importlib.util.spec_from_file_location("tarry_polling", Path(__file__).with_name("polling.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.shorten_polling()


if __name__ == "__main__":
    if sys.path[0] == str(Path(__file__).parent):
        sys.path.pop(0)  # a file's folder is not for imports
    main()
