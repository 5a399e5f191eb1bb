"""A SuperNode without long sleeps: `flower-supernode`, with the same arguments.

python -m tarry.deploy.node --superlink HOST:PORT ...
"""

from __future__ import annotations

from .haste import hasten

__all__ = ["main"]


def main() -> None:
    """As `flower-supernode`."""
    from flwr.supernode.cli import flower_supernode

    hasten()
    flower_supernode()


if __name__ == "__main__":
    main()
